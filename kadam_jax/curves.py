"""Curves in the plane of both decays: level curves of C(β, γ), and curves normal to them.

These are the curves of Appendix F, which the paper draws in Fig. 2 and follows in §3.2 and §3.3:
Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_. Both are computed on the
host in float64 and rounded once; `b1` is the paper's γ and `b2` its β.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from kadam_jax._checks import (
    FINITE,
    POSITIVE_DECAY,
    Range,
    check_choice,
    check_integer,
    check_real,
    is_known,
    require,
)

__all__ = ["level_curve", "normal_curve"]


def _known(name: str, value: ArrayLike, within: Range) -> np.ndarray:
    """Return checked numbers as a host array with two more axes, for a curve's points."""
    numbers = check_real(name, value, within, single=False)
    hint = "compute the curve outside of jit, vmap and grad, and pass its points in"
    require(is_known(numbers), name, "be concrete", "a traced array", hint=hint, error=TypeError)
    return np.asarray(numbers, np.float64)[..., None, None]


@np.errstate(all="ignore")
def level_curve(c: ArrayLike, num: int) -> tuple[jax.Array, jax.Array]:
    r"""Return points of the level curve C(β, γ) = c, uniform in arc length.

    The curve γ = 2β / (1 + (1+c)β) (Appendix F) rises from the origin to the side β=1, which it
    meets at γ = 2/(2+c), if c >= 0, and to the side γ=1 at β = 1/(1-c) otherwise. Both ends are
    excluded: on a curve of length L, point i is at :math:`s_i = (i+1)L/(num+1)` from the origin.

    The points lie on the curve for every c; arc lengths are accurate to 1e-12 for \|c\| up to 100
    and lose digits slowly beyond.

    Args:
      c: the value of C, any finite number, any shape.
      num: how many points, a Python int >= 1.

    Returns:
      (b1s, b2s), each of shape (*c.shape, num), of JAX's default float dtype.

    Raises:
      ValueError: `c` is not finite, `num` is below 1, or a point is on the border of the unit
        square after rounding (in float32, for instance, if \|c\| is above 1e37).
      TypeError: `c` is traced or not real, since a curve needs concrete values; `num` is not an
        int.

    Example:
      >>> import numpy as np
      >>> from kadam_jax import level_curve, stability_coefficient
      >>> b1s, b2s = level_curve(0.5, 3)
      >>> print(np.array([b1s, b2s, stability_coefficient(b1s, b2s)]).round(3))
      [[0.278 0.509 0.68 ]
       [0.176 0.411 0.693]
       [0.5   0.5   0.5  ]]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1, Fig. 2, Appendix F, Appendix M.
    """
    num = check_integer("num", num)
    c = _known("c", c, FINITE)

    # The parameter is b1 + b2: both rise along the curve, so the speed is in [1/√2, 1]. The smaller
    # decay is computed by a formula in which nothing cancels, however steep or flat the curve is.
    def curve(total):
        bend = (1 + c) * total
        root = np.hypot(bend - 1, np.sqrt(8))
        b1, b2 = 4 * total / (3 + bend + root), 2 * total / (3 - bend + root)
        b1, b2 = np.where(bend < 0, total - b2, b1), np.where(bend < 0, b2, total - b1)
        slope = (b1 / b2) ** 2 / 2  # db1/db2
        slope = np.minimum(slope, 1 / slope)  # the speed is the same for both
        return b1, b2, np.hypot(1, slope) / (1 + slope)

    stop = 1 / (1 + np.maximum(-c, 0)) + 2 / (2 + np.maximum(c, 0))
    fractions = (np.arange(num) + 1) / (num + 1)
    return _uniform_in_arc_length("c", curve, 0 * stop, stop, fractions)


@np.errstate(all="ignore")
def normal_curve(
    b1: ArrayLike, b2: ArrayLike, num: int, *, direction: str = "unstable"
) -> tuple[jax.Array, jax.Array]:
    r"""Return points of the curve through (β, γ) that meets all level curves at right angles.

    The curve is 2β³ + γ³ = constant (Appendix F), and C is monotonic along it. The points are
    uniform in arc length and never include an end on the border of the unit square:

    - "unstable": from the given point, which comes first, to γ=1 (or β=0, if the constant is below
      1); C falls. On a section of length L, point i is at :math:`s_i = iL/num`.
    - "stable": from the given point to β=1 (or γ=0, if the constant is below 2); C rises.
    - "both": the whole curve, in the direction in which C falls, at :math:`s_i = (i+1)L/(num+1)`.

    Args:
      b1: decay γ of the first moment at the given point, in (0, 1), any shape.
      b2: decay β of the second moment at the given point, in (0, 1), any shape.
      num: how many points, a Python int >= 1.
      direction: "unstable", "stable" or "both".

    Returns:
      (b1s, b2s), each of the broadcast shape of `b1` and `b2` followed by num, of JAX's default
      float dtype.

    Raises:
      ValueError: `b1` or `b2` is outside (0, 1), `num` is below 1, `direction` is unknown, or a
        point is on the border of the unit square after rounding.
      TypeError: `b1` or `b2` is traced or not real, since a curve needs concrete values; `num` is
        not an int.

    Example:
      >>> import numpy as np
      >>> from kadam_jax import normal_curve, stability_coefficient
      >>> b1s, b2s = normal_curve(0.9, 0.999, 3)
      >>> print(np.array([b1s, b2s, stability_coefficient(b1s, b2s)]).round(3))
      [[0.9   0.934 0.967]
       [0.999 0.984 0.969]
       [0.221 0.126 0.035]]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1, §3.3, Fig. 2, Appendix F, Appendix M.
    """
    num = check_integer("num", num)
    b1, b2 = _known("b1", b1, POSITIVE_DECAY), _known("b2", b2, POSITIVE_DECAY)
    constant = 2 * b2**3 + b1**3

    # The parameter is the polar angle: radius and speed are smooth on the whole quadrant.
    def curve(angle):
        sin, cos = np.sin(angle), np.cos(angle)
        form = 2 * cos**3 + sin**3
        radius = np.cbrt(constant / form)
        log_slope = sin * cos * (2 * cos - sin) / form
        return radius * sin, radius * cos, radius * np.hypot(1, log_slope)

    given = np.arctan2(b1, b2)
    stable_end = np.arctan2(np.cbrt(np.maximum(constant - 2, 0)), 1)
    unstable_end = np.arctan2(1, np.cbrt(np.maximum(constant - 1, 0) / 2))
    from_given, inside = np.arange(num) / num, (np.arange(num) + 1) / (num + 1)
    sections = {
        "unstable": (given, unstable_end, from_given),
        "stable": (given, stable_end, from_given),
        "both": (stable_end, unstable_end, inside),
    }
    check_choice("direction", direction, sections)
    return _uniform_in_arc_length("b1 and b2", curve, *sections[direction])


def _uniform_in_arc_length(
    name: str,
    curve: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]],
    start: np.ndarray,
    stop: np.ndarray,
    fractions: np.ndarray,
) -> tuple[jax.Array, jax.Array]:
    """Return points at the given fractions, shape (num,), of the arc length from start to stop.

    `curve` maps parameters, shape (..., num, nodes), to (b1, b2, speed); start and stop have shape
    (..., 1, 1). The speeds of both curves vary by a factor below 1.5, so each of Newton's steps at
    least halves the error, and soon squares it. `name` is the argument that an error message blames
    for points on the border.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)

    def length(parameter):
        span = parameter - start
        speed = curve(start + span * (1 + nodes) / 2)[2]
        return span * (speed @ weights)[..., None] / 2

    def points(fractions):
        target = fractions * length(stop)
        parameter = start + fractions * (stop - start)
        for _ in range(12):
            parameter = parameter - (length(parameter) - target) / curve(parameter)[2]
        return [b[..., 0] for b in curve(parameter)[:2]]

    # Every point has 128 nodes, so only a few points are computed at once.
    pieces = np.array_split(fractions[:, None], 1 + start.size * len(fractions) // 2**12)
    b1s, b2s = (np.concatenate(b, -1) for b in zip(*map(points, pieces), strict=True))
    dtype = jnp.result_type(float)
    for b in (b1s, b2s):
        rounded = b.astype(dtype)
        require(
            np.all((rounded >= np.finfo(dtype).tiny) & (rounded < 1)),
            name,
            f"give {len(fractions)} points inside (0, 1) once rounded to {dtype}",
            "a point on the border",
            hint="move away from the border, take fewer points, or use float64 (jax.enable_x64)",
        )
    return jnp.asarray(b1s, dtype), jnp.asarray(b2s, dtype)
