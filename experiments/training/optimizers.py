"""A table of all optimizers that can train a network: a new optimizer is one new row.

Hyperparameters are numbers of a member that may be traced, so that grids share one program. The
learning rate means the same everywhere: it multiplies an update whose entries are about 1,
including Muon's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path
from optax import contrib

from kadam_jax import kadam, per_stage_decays

Member = Mapping[str, Any]
"""`learning_rate`, `b1`, `b2`, `weight_decay`, `eps`; an optimizer ignores those it does not have.
k-Adam also takes `k`, and may take `strategy`, `coupled` and decays of each stage, `b1_1`, ...,
`b2_k`. Only `k`, `strategy` and `coupled` must be known when the program is traced."""
ADAMW = "adamw"
"""The optimizer with which others are compared."""
USUAL = {"b1": 0.9, "b2": 0.999, "weight_decay": 1e-2}
"""The usual starting values."""
LOOKED_UP = {"embedding", "positions"}
"""Parameters whose rows are looked up. Muon is for matrices that multiply, Adam for the others."""
ADAMS_SIZE = 0.2
"""Root mean square of Muon's updates, about that of Adam's, so they can share a learning rate."""


class Optimizer(NamedTuple):
    """A row of the table."""

    make: Callable[[Member, optax.Schedule], optax.GradientTransformation]
    """`make(member, schedule)`: the schedule gives the learning rate at every step."""
    usual: Mapping[str, float] = USUAL
    """The usual starting values, apart from the learning rate."""
    eps: float = 1e-8
    """Epsilon for members that have none."""
    decays_rate: bool = True
    """Whether the learning rate should fall after the warm-up."""
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


def input_axes(path: str, leaf: Any) -> tuple[int, ...]:
    """Return the axes of a matrix's inputs.

    Queries, keys and values of each head stay apart; a convolution's kernel is a matrix from its
    window and channels to the new channels.
    """
    return (0,) if "qkv" in path.split("/") else tuple(range(leaf.ndim - 1))


def _dimensions(path: Sequence[Any], leaf: Any) -> contrib.MuonDimensionNumbers | None:
    """Return the dimension numbers of a parameter that is for Muon, else None."""
    names = [str(getattr(key, "key", key)) for key in path]
    if leaf.ndim < 2 or LOOKED_UP & {*names}:
        return None
    return contrib.MuonDimensionNumbers(input_axes("/".join(names), leaf), output_axis=-1)


def muon_dimensions(params: Any) -> Any:
    """Return Muon's dimension numbers of all parameters that are for it, None for others."""
    return tree_map_with_path(_dimensions, params)


def is_matrix(params: Any) -> Any:
    """Return whether each parameter is for Muon."""
    return tree_map_with_path(lambda *leaf: _dimensions(*leaf) is not None, params)


def _muon(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    return contrib.muon(
        schedule,
        beta=at["b1"],
        weight_decay=at["weight_decay"],
        muon_weight_dimension_numbers=muon_dimensions,
        consistent_rms=ADAMS_SIZE,
        adam_b1=at["b1"],
        adam_b2=at["b2"],
        adam_weight_decay=at["weight_decay"],
    )


def _schedule_free_adamw(
    at: Member, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.contrib.schedule_free_adamw`, but with a learning rate that is our schedule."""
    return contrib.schedule_free(_rms_scaled(at, schedule), schedule, at["b1"])


def _averages(opt_state: Any, params: Any) -> Any:
    """Return the parameters in schedule-free's state, wherever it is in a chain's state."""

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
    """Add decoupled weight decay and the learning rate to `scaling`, as `optax.adamw` does."""
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
"""The optimizers by name; k-Adam's k and strategy are values of a member, not rows."""


def make_optimizer(
    name: str, member: Member, shape: optax.Schedule
) -> optax.GradientTransformation:
    """Make one optimizer of the table.

    Args:
      name: A name in `OPTIMIZERS`.
      member: The hyperparameters; `clip_norm`, if given, is the largest global norm of a gradient.
      shape: The factor on the learning rate at every step.

    Returns:
      The optimizer with its schedule, after gradient clipping if there is any.

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
    dtype = jnp.result_type(at["learning_rate"])  # with float64 enabled, a schedule returns float64

    def schedule(count):
        return at["learning_rate"] * jnp.asarray(shape(count), dtype)

    optimizer = OPTIMIZERS[name].make(at, schedule)
    if "clip_norm" not in at:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(at["clip_norm"]), optimizer)


def strategy_decays(
    k: int, strategy: str, b1: float = USUAL["b1"], b2: float = USUAL["b2"]
) -> dict[str, float]:
    """Return every stage's `b1` and `b2`, which a strategy of the paper derives from Adam's (§4.3).

    >>> {name: round(decay, 5) for name, decay in strategy_decays(2, "inverse_exp").items()}
    {'b1': 0.68377, 'b2': 0.96838}
    """
    (b1, *_), (b2, *_) = per_stage_decays(b1, b2, k, strategy)
    return {"b1": float(b1), "b2": float(b2)}
