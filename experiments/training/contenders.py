"""Optimizers that are compared: what is tuned is a number, so that grids share one program.

Learning rates stand for the same thing everywhere: what multiplies an update whose entries are
about 1, Muon's included.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import optax
from jax.typing import ArrayLike
from optax import contrib

from experiments.training.optimizers import EPS, OPTAX_EPS, OPTIMIZERS
from experiments.training.trials import Trial
from kadam_jax import per_stage_decays, scale_by_kadam

Member = Mapping[str, ArrayLike]
"""`rate`, what the schedule is multiplied by, `b1`, `b2` and `weight_decay`."""
ADAMW = "adamw"
"""The optimizer that others are compared with."""
USUAL = {"b1": 0.9, "b2": 0.999, "weight_decay": 1e-2}
"""What one starts from."""
LOOKED_UP = {"embedding", "positions"}
"""Parameters whose rows are looked up: Muon is for matrices that multiply, Adam for the others."""
MATRIX = contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=-1)
"""Of parameters (inputs, ..., outputs); those of queries, keys and values of each head are apart.
"""
ADAMS_SIZE = 0.2
"""Root mean square of Muon's updates, about that of Adam's: both can share a learning rate."""


class Contender(NamedTuple):
    """An optimizer and what it is measured with."""

    make: Callable[[Member, optax.Schedule], optax.GradientTransformation]
    """`make(member, schedule)`: the schedule goes from 0 to 1 and down, the member multiplies it;
    every value may be traced."""
    decays_rate: bool = True
    """Whether its learning rate falls after the warm-up."""
    evaluated: Callable[[Any, Any], Any] = lambda opt_state, params: params
    """`evaluated(opt_state, params)`: the parameters that are measured."""
    usual: Mapping[str, float] = USUAL
    """The usual values to start from, learning rate aside."""


def _from_table(name: str, **usual: float) -> Contender:
    """One of `OPTIMIZERS`, with its own epsilon."""

    def make(member, schedule):
        at = SimpleNamespace(**member, eps=EPS.get(name, OPTAX_EPS))
        return OPTIMIZERS[name](lambda count: member["rate"] * schedule(count), at)

    return Contender(make, usual=USUAL | usual)


def _muon(member: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    def matrices(params):
        def numbers(path, leaf):
            looked_up = any(getattr(key, "key", None) in LOOKED_UP for key in path)
            return MATRIX if leaf.ndim > 1 and not looked_up else None

        return jax.tree_util.tree_map_with_path(numbers, params)

    return contrib.muon(
        lambda count: member["rate"] * schedule(count),
        beta=member["b1"],
        weight_decay=member["weight_decay"],
        muon_weight_dimension_numbers=matrices,
        consistent_rms=ADAMS_SIZE,
        adam_b1=member["b1"],
        adam_b2=member["b2"],
        adam_weight_decay=member["weight_decay"],
    )


def _schedule_free_adamw(
    member: Member, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """As `optax.contrib.schedule_free_adamw`, whose learning rate cannot be a schedule of ours."""

    def rate(count):
        return member["rate"] * schedule(count)

    inner = optax.chain(
        optax.scale_by_rms(member["b2"], OPTAX_EPS, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(member["weight_decay"]),
        optax.scale_by_learning_rate(rate),
    )
    return contrib.schedule_free(inner, rate, member["b1"])


def kadam_contender(k: int) -> Contender:
    """k-Adam with decoupled weight decay.

    A member's `b1` and `b2` are those of every stage, or of each stage: `b1_1`, ..., `b1_k` and
    `b2_1`, ..., `b2_k`.
    """

    def make(member, schedule):
        b1, b2 = (
            tuple(member.get(f"{name}_{stage}", member.get(name)) for stage in range(1, k + 1))
            for name in ("b1", "b2")
        )
        return optax.chain(
            scale_by_kadam(k, b1, b2, EPS["kadam"]),
            optax.add_decayed_weights(member["weight_decay"]),
            optax.scale_by_learning_rate(lambda count: member["rate"] * schedule(count)),
        )

    return Contender(make)


def strategy_decays(k: int, strategy: str) -> dict[str, float]:
    """`b1` and `b2` of every stage, from the usual ones by one of the paper's strategies (§4.3).

    >>> {name: round(decay, 5) for name, decay in strategy_decays(2, "inverse_exp").items()}
    {'b1': 0.68377, 'b2': 0.96838}
    """
    (b1, *_), (b2, *_) = per_stage_decays(USUAL["b1"], USUAL["b2"], k, strategy)
    return {"b1": float(b1), "b2": float(b2)}


CONTENDERS: Mapping[str, Contender] = {
    ADAMW: _from_table(ADAMW),
    "nadamw": _from_table("nadamw"),
    "rmsprop": _from_table("rmsprop"),
    "lion": _from_table("lion", b2=0.99),
    "muon": Contender(_muon, usual=USUAL | {"b1": 0.95}),
    "schedule_free_adamw": Contender(
        _schedule_free_adamw, decays_rate=False, evaluated=contrib.schedule_free_eval_params
    ),
    "kadam_2": kadam_contender(2),
    "kadam_3": kadam_contender(3),
}
"""By name; k-Adam's strategies are members, since they differ in numbers alone."""


def contender_trial(
    name: str, trial: Trial, num_steps: int, warmup_steps: int, final_rate: float
) -> Callable[[Member], dict[str, jax.Array]]:
    """What trains one member of a contender and measures it.

    Args:
      name: Of `CONTENDERS`.
      trial: Trains with an optimizer.
      num_steps: Of `trial`.
      warmup_steps: As in `schedule`.
      final_rate: As in `schedule`.

    Returns:
      A function of a member, its `seed` included, that gives `validation` and `test`, means.
    """
    contender = CONTENDERS[name]
    shape = schedule(contender, num_steps, warmup_steps, final_rate)

    def fn(member):
        found = trial(contender.make(member, shape), member["seed"], contender.evaluated)
        return {"validation": found["validation"], "test": found["test"].mean()}

    return fn


def schedule(
    contender: Contender, num_steps: int, warmup_steps: int, final_rate: float
) -> optax.Schedule:
    """What a member's learning rate is multiplied by: a linear warm-up from 0 to 1, then a cosine.

    Args:
      contender: Whether it decays its learning rate at all.
      num_steps: Of the whole run.
      warmup_steps: Of the warm-up, below num_steps.
      final_rate: The cosine's end, as a share of its beginning.

    Returns:
      The schedule, a function of the number of steps done before.

    >>> shape = schedule(CONTENDERS["adamw"], num_steps=10, warmup_steps=2, final_rate=0.5)
    >>> [round(float(shape(count)), 3) for count in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.75, 0.5]
    """
    final = final_rate if contender.decays_rate else 1.0
    return optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps, num_steps, final)
