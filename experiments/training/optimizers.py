"""Every optimizer that can be trained with, as one table: a new one is one row of it.

Hyperparameters are numbers of a member that may be traced, so that grids share one program. The
learning rate stands for the same thing everywhere: what multiplies an update whose entries are
about 1, Muon's included.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from kadam_jax import kadam, per_stage_decays

Member = Mapping[str, Any]
"""`learning_rate`, `b1`, `b2`, `weight_decay`, `eps`; what an optimizer does not have it ignores.
k-Adam also takes `k`, and may have `strategy`, `coupled` and decays of each stage, `b1_1`, ...,
`b2_k`. Only `k`, `strategy` and `coupled` must be known when the program is traced."""
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


class Optimizer(NamedTuple):
    """A row of the table."""

    make: Callable[[Member, optax.Schedule], optax.GradientTransformation]
    """`make(member, schedule)`: the schedule is the learning rate at every step."""
    usual: Mapping[str, float] = USUAL
    """The usual values to start from, learning rate aside."""
    eps: float = 1e-8
    """Epsilon where a member has none."""
    decays_rate: bool = True
    """Whether its learning rate should fall after the warm-up."""
    evaluated: Callable[[Any, Any], Any] = lambda opt_state, params: params
    """`evaluated(opt_state, params)`: the parameters that are measured."""


def _kadam(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    stages = range(1, at["k"] + 1)
    b1, b2 = (
        tuple(at[f"{name}_{stage}"] for stage in stages) if f"{name}_1" in at else at[name]
        for name in ("b1", "b2")
    )
    return kadam(
        schedule,
        at["k"],
        b1,
        b2,
        at["eps"],
        strategy=at.get("strategy", "naive"),
        weight_decay=at["weight_decay"],
        coupled=at.get("coupled", False),
    )


def _muon(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    def matrices(params):
        def numbers(path, leaf):
            looked_up = any(getattr(key, "key", None) in LOOKED_UP for key in path)
            return MATRIX if leaf.ndim > 1 and not looked_up else None

        return jax.tree_util.tree_map_with_path(numbers, params)

    return contrib.muon(
        schedule,
        beta=at["b1"],
        weight_decay=at["weight_decay"],
        muon_weight_dimension_numbers=matrices,
        consistent_rms=ADAMS_SIZE,
        adam_b1=at["b1"],
        adam_b2=at["b2"],
        adam_weight_decay=at["weight_decay"],
    )


def _schedule_free_adamw(
    at: Member, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """As `optax.contrib.schedule_free_adamw`, whose learning rate cannot be a schedule of ours."""
    return contrib.schedule_free(_rms_scaled(at, schedule), schedule, at["b1"])


def _averages(opt_state: Any, params: Any) -> Any:
    """The parameters of schedule-free's state, wherever in a chain's it stands."""

    def is_its(state):
        return isinstance(state, contrib.ScheduleFreeState)

    (state,) = filter(is_its, jax.tree.leaves(opt_state, is_leaf=is_its))
    return contrib.schedule_free_eval_params(state, params)


def _rms_scaled(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    return _decayed(
        optax.scale_by_rms(at["b2"], at["eps"], eps_in_sqrt=False, bias_correction=True),
        at,
        schedule,
    )


def _decayed(
    scaling: optax.GradientTransformation, at: Member, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """`scaling` with decoupled weight decay and the learning rate, as `optax.adamw` has them."""
    decay = optax.add_decayed_weights(at["weight_decay"])
    return optax.chain(scaling, decay, optax.scale_by_learning_rate(schedule))


OPTIMIZERS: dict[str, Optimizer] = {
    "kadam": Optimizer(_kadam, eps=1e-30),
    ADAMW: Optimizer(
        lambda at, schedule: optax.adamw(
            schedule, at["b1"], at["b2"], at["eps"], weight_decay=at["weight_decay"]
        )
    ),
    "nadamw": Optimizer(
        lambda at, schedule: optax.nadamw(
            schedule, at["b1"], at["b2"], at["eps"], weight_decay=at["weight_decay"]
        )
    ),
    "rmsprop": Optimizer(_rms_scaled),
    "lion": Optimizer(
        lambda at, schedule: optax.lion(
            schedule, at["b1"], at["b2"], weight_decay=at["weight_decay"]
        ),
        usual=USUAL | {"b2": 0.99},
    ),
    "muon": Optimizer(_muon, usual=USUAL | {"b1": 0.95}),
    "schedule_free_adamw": Optimizer(_schedule_free_adamw, decays_rate=False, evaluated=_averages),
    "sgd": Optimizer(lambda at, schedule: _decayed(optax.trace(at["b1"]), at, schedule)),
}
"""By name; k-Adam's numbers of stages and strategies are members, since they differ in values."""


def make_optimizer(
    name: str, member: Member, shape: optax.Schedule
) -> optax.GradientTransformation:
    """One optimizer of the table.

    Args:
      name: Of `OPTIMIZERS`.
      member: Its hyperparameters; `clip_norm`, if there is one, is the largest global norm of a
        gradient.
      shape: What the learning rate is multiplied by at every step.

    Returns:
      Gradient clipping, if there is any, before the optimizer with its schedule.

    >>> member = {"learning_rate": 0.5, "b1": 0.0, "weight_decay": 0.0, "clip_norm": 2.0}
    >>> optimizer = make_optimizer("sgd", member, lambda count: 0.01 * count)
    >>> params, grads = jnp.zeros(()), jnp.array(4.0)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(grads, state, params)
    >>> round(float(updates), 4)
    -0.01
    """
    at = {"eps": OPTIMIZERS[name].eps, **member}
    dtype = jnp.result_type(at["learning_rate"])  # where JAX has float64, a schedule's is that

    def schedule(count):
        return at["learning_rate"] * jnp.asarray(shape(count), dtype)

    optimizer = OPTIMIZERS[name].make(at, schedule)
    if "clip_norm" not in at:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(at["clip_norm"]), optimizer)


def strategy_decays(
    k: int, strategy: str, b1: float = USUAL["b1"], b2: float = USUAL["b2"]
) -> dict[str, float]:
    """`b1` and `b2` of every stage, from Adam's by one of the paper's strategies (§4.3).

    >>> {name: round(decay, 5) for name, decay in strategy_decays(2, "inverse_exp").items()}
    {'b1': 0.68377, 'b2': 0.96838}
    """
    (b1, *_), (b2, *_) = per_stage_decays(b1, b2, k, strategy)
    return {"b1": float(b1), "b2": float(b2)}
