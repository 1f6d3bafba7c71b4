"""Random calls of the library: each gives the right numbers, or says which argument is wrong.

    python -m tests.fuzz.library --calls 20000 --seed 0

Arguments are usual ones, ends, numbers next to them, and things that are not numbers at all; of
every dtype, concrete or traced. A call ends well if its result is the reference's (tests/kadam_jax,
in exact fractions or literal NumPy), or if it raises TypeError or ValueError with the name of one
of its arguments in the message. Everything else is printed with the call that shows it.
"""

import argparse
import collections
import decimal
import fractions
import math
import random
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import kadam_jax
from tests.kadam_jax.support import reference, reference_stability

ODD = (
    *(None, "0.9", b"x", True, 1j, math.nan, math.inf, -math.inf, -0.0, -1e-9, -1, 2, 1 + 1e-9),
    *(
        1.0,
        0.0,
        1e-40,
        1e-320,
        1 - 1e-12,
        1e30,
        10**30,
        fractions.Fraction(1, 2),
        decimal.Decimal(0),
    ),
    *(
        object(),
        {},
        [],
        [0.5, "x"],
        [[0.5], [0.5, 0.5]],
        np.array(None),
        np.datetime64("2020"),
        len,
    ),
)
DTYPES = ("float16", "bfloat16", "float32", "int32")
SECONDS = 60.0
"""A call that takes longer is a finding."""


class Wrong(Exception):
    """A result that is not the reference's."""


def decay(rng, *, lowest=0.0):
    """A decay that may be anything."""
    if rng.random() < 0.12:
        return rng.choice(ODD)
    value = rng.choice(
        (rng.random(), 1 - 10 ** rng.uniform(-6, 0), 10 ** rng.uniform(-6, 0), 0.9, 0.999)
    )
    value = max(lowest, min(value, 1 - 1e-7))
    kind = rng.random()
    if kind < 0.2:
        return np.float32(value)
    return jnp.asarray(value, jnp.float32) if kind < 0.3 else value


def close_log(found, expected, rtol):
    """Whether logarithms agree closely enough for their numbers to agree within `rtol`."""
    return abs(float(found) - expected) <= rtol * max(1.0, abs(expected))


def maybe_traced(rng, fn, *arguments):
    """The call, by jit where all arguments are numbers that jit takes."""

    def fits(x):
        if isinstance(x, int):
            return not isinstance(x, bool) and abs(x) < 2**31
        return isinstance(x, float | np.floating | np.integer | jax.Array)

    if all(map(fits, arguments)) and rng.random() < 0.15:
        return jax.jit(fn)(*arguments)
    return fn(*arguments)


def promised_nothing(arguments):
    """Whether decays are not single numbers, or out of range, which only a traced call accepts."""
    if any(np.ndim(x) for x in arguments):  # arrays are allowed, here they are empty
        return True
    return not all(float(b) >= 0 and np.float32(b) < 1 for b in arguments)


def bounds(rng):
    """`max_update_bound` and `exact_max_update_bound` against exact fractions."""
    step = (
        rng.choice((0, 1, 2, 10, 99, rng.randrange(400))) if rng.random() < 0.9 else rng.choice(ODD)
    )
    b1, b2 = decay(rng), decay(rng)
    name = rng.choice(("exact_max_update_bound", "max_update_bound"))
    fn = getattr(kadam_jax, name)

    def check(found):
        if promised_nothing((b1, b2)) or not isinstance(step, int) or step < 0:
            return
        g, b = (float(np.float32(x)) for x in (b1, b2))
        if min(g, b) < 1e-30:
            return
        if name == "max_update_bound":
            c = reference_stability.stability_coefficient(g, b)
            if abs(c) < 1e-4:  # Theorem 1 jumps at C = 0
                return
        log = getattr(reference_stability, f"log_{name}")(step, g, b)
        if log is not None and not close_log(found, log, 5e-4):
            raise Wrong(f"{float(found)} for {log}")

    return (
        (name, step, b1, b2),
        lambda: maybe_traced(rng, lambda *x: fn(*x, log=True), step, b1, b2),
        check,
    )


def regions(rng):
    """`is_stable`, `is_exactly_stable` and C against exact fractions."""
    b1, b2 = decay(rng), decay(rng)
    name = rng.choice(("is_stable", "is_exactly_stable", "stability_coefficient"))

    def check(found):
        if promised_nothing((b1, b2)):
            return
        g, b = (float(np.float32(x)) for x in (b1, b2))
        if min(g, b) < 1e-30:
            return
        c = float(reference_stability.stability_coefficient(g, b))
        size = 2 / g + 1 / b
        gap = fractions.Fraction(g) ** 2 - fractions.Fraction(b)
        if name == "stability_coefficient" and abs(float(found) - c) > 1e-5 * size:
            raise Wrong(f"{float(found)} for {c}")
        if name == "is_stable" and abs(c) > 1e-5 * size and bool(found) != (c > 0):
            raise Wrong(f"{bool(found)} at C = {c}")
        if name == "is_exactly_stable" and abs(gap) > 1e-6 and bool(found) != (gap < 0):
            raise Wrong(f"{bool(found)} at γ² - β = {float(gap)}")

    fn = getattr(kadam_jax, name)
    return (name, b1, b2), lambda: maybe_traced(rng, fn, b1, b2), check


def strategies(rng):
    """`per_stage_decays` against section 4.3's list."""
    b1, b2 = decay(rng), decay(rng)
    k = rng.choice((1, 2, 3, 5, 10)) if rng.random() < 0.8 else rng.choice(ODD)
    names = [*kadam_jax.STRATEGIES, "Exp", "", None]
    strategy = rng.choice(names if rng.random() < 0.3 else names[:-3])

    def check(found):
        for decays, b in zip(found, (b1, b2), strict=True):
            expected = reference.per_stage_decay(float(b), k, strategy)
            if len(decays) != k or any(abs(float(x) - expected) > 1e-6 for x in decays):
                raise Wrong(f"{decays} for {expected}")

    return (k, strategy, b1, b2), lambda: kadam_jax.per_stage_decays(b1, b2, k, strategy), check


def optimizer(rng):
    """A few updates of k-Adam on any tree against Algorithm 1, or a refusal."""
    k = rng.choice((1, 1, 2, 3)) if rng.random() < 0.9 else rng.choice((*ODD, 0.9))
    b1, b2 = decay(rng), decay(rng)
    eps = rng.choice((1e-30, 1e-8, 0.1)) if rng.random() < 0.9 else rng.choice(ODD)
    rate = rng.choice((1e-3, 0.1, 1.0)) if rng.random() < 0.9 else rng.choice(ODD)
    weight_decay = rng.choice((0.0, 0.0, 1e-4, 0.1)) if rng.random() < 0.9 else rng.choice(ODD)
    if rate is len or weight_decay is len or rate == 1e-40:  # a schedule's own error; flushed to 0
        rate, weight_decay = 1e-3, 0.0
    shape = rng.choice(((), (1,), (3,), (2, 2), (0,)))
    dtype, param_dtype = rng.choice(DTYPES), rng.choice(DTYPES[:3])
    source = np.random.default_rng(rng.randrange(2**32))
    scale = 10.0 ** source.uniform(-3, 3)
    gradients = jnp.asarray(scale * source.standard_normal((4, *shape)), dtype)
    params = jnp.asarray(source.standard_normal(shape), param_dtype)
    if rng.random() < 0.05:
        gradients = gradients + 1j
    with_params = weight_decay != 0 or rng.random() < 0.7
    described = (k, b1, b2, eps, rate, weight_decay, gradients.dtype, params.dtype, shape)

    def call():
        tx = kadam_jax.kadam(rate, k, b1, b2, eps, weight_decay=weight_decay)
        state, updates = tx.init(params), []
        for gradient in gradients:
            update, state = tx.update(gradient, state, params if with_params else None)
            updates.append(update)
        return updates

    def check(found):
        wanted = (
            jnp.promote_types(gradients.dtype, params.dtype) if with_params else gradients.dtype
        )
        if any(update.dtype != wanted for update in found):
            raise Wrong(f"updates of {found[0].dtype}, not {wanted}")
        g, b = (np.asarray(x, np.float64) for x in (b1, b2))
        gammas = [reference.per_stage_decay(float(g), k, "inverse_exp")] * k
        betas = [reference.per_stage_decay(float(b), k, "inverse_exp")] * k
        if min(1 - gammas[0], 1 - betas[0]) < 1e-6:
            return
        trajectory = reference.kadam(
            np.asarray(gradients, np.float64), gammas=gammas, betas=betas, epsilon=float(eps)
        )
        theta = np.asarray(params, np.float64)
        expected = -float(rate) * (trajectory.u[:, -1] + float(weight_decay) * theta)
        size = np.abs(expected).max(initial=0) + float(rate)
        rounding = float(jnp.finfo(wanted).eps) + 1e-6 / min(1 - betas[0], 1 - gammas[0])
        rounding += 1e-7 / max(math.sqrt(betas[0]), 1e-7) * (betas[0] > 0)  # as `root_mean_square`
        tiny = float(jnp.finfo(wanted).tiny)  # smaller numbers may be flushed to 0
        error = np.abs(np.asarray(found, np.float64) - expected).max(initial=0)
        if not error <= 4 * rounding * size + tiny:
            raise Wrong(f"off by {error} of {size}")

    return described, call, check


def members(rng):
    """`grid`, `points` and `sweep` against a loop."""
    axes = {
        name: rng.choice(([1.0, 2.0], [3, 4], np.arange(2.0), rng.choice((range(3), [5], *ODD))))
        for name in rng.sample(("a", "b", "c"), rng.randrange(1, 4))
    }
    make = rng.choice((kadam_jax.grid, kadam_jax.points))
    chunk = rng.choice((None, 1, 2, 100)) if rng.random() < 0.8 else rng.choice(ODD)
    batching = rng.choice(("auto", "map", "vmap")) if rng.random() < 0.9 else rng.choice(ODD[:6])

    def call():
        made = make(**axes)
        return made, kadam_jax.sweep(total, made, chunk_size=chunk, batching=batching)

    def check(found):
        made, sums = found
        columns = np.array([np.asarray(column, np.float64) for column in made.values()])
        if not np.allclose(sums, columns.sum(0), equal_nan=True):
            raise Wrong(f"{sums} for {columns.sum(0)}")

    return (make.__name__, axes, chunk, batching), call, check


def total(member):
    """The sum of a member's values."""
    return sum(jnp.asarray(value, jnp.float32) for value in member.values())


def norms(rng):
    """`predicted_squared_norm` against its sum in float64."""
    steps = rng.randrange(0, 40)
    source = np.random.default_rng(rng.randrange(2**32))
    squares = np.abs(source.standard_normal(steps)).astype(np.float32)
    initial = rng.choice((0.0, 1.0, 1e4)) if rng.random() < 0.85 else rng.choice(ODD)
    rate = rng.choice((1e-4, 0.1)) if rng.random() < 0.85 else rng.choice(ODD)
    weight_decay = rng.choice((0.0, 1e-2, 3.0)) if rng.random() < 0.85 else rng.choice(ODD)

    def call():
        return kadam_jax.predicted_squared_norm(
            initial, squares, learning_rate=rate, weight_decay=weight_decay
        )

    def check(found):
        eta, lam, phi = float(rate), float(weight_decay), [float(initial)]
        for square in squares.astype(float):
            phi.append(math.exp(-2 * lam * eta) * (phi[-1] + eta**2 * square))
        with np.errstate(over="ignore"):
            phi = np.float32(phi)
        if not np.allclose(found, phi, rtol=1e-5, atol=1e-30):
            raise Wrong(f"{np.asarray(found)[-1]} for {phi[-1]}")

    return (initial, steps, rate, weight_decay), call, check


def curves(rng):
    """`level_curve` and `normal_curve`: C has its value, or 2β³ + γ³ is constant."""
    num = rng.choice((1, 2, 7)) if rng.random() < 0.9 else rng.choice(ODD)
    if rng.random() < 0.5:
        c = rng.uniform(-20, 20) if rng.random() < 0.8 else rng.choice((*ODD, 1e16, -1e16, 1e300))

        def check(found):
            if np.ndim(c):  # arrays are allowed, here they are empty
                return
            b1, b2 = (np.asarray(b, np.float64) for b in found)
            if not (np.abs(2 / b1 - 1 / b2 - 1 - c) <= 1e-5 * (2 / b1 + 1 / b2 + abs(c))).all():
                raise Wrong(f"C = {2 / b1 - 1 / b2 - 1}")

        return ("level_curve", c, num), lambda: kadam_jax.level_curve(c, num), check
    b1, b2 = decay(rng), decay(rng)
    direction = rng.choice(("stable", "unstable", "both", "up", None))

    def check(found):
        if promised_nothing((b1, b2)):
            return
        gamma, beta = (np.asarray(b, np.float64) for b in found)
        constant = 2 * float(b2) ** 3 + float(b1) ** 3
        if not np.allclose(2 * beta**3 + gamma**3, constant, rtol=1e-5, atol=1e-30):
            raise Wrong(f"{2 * beta**3 + gamma**3} for {constant}")

    return (
        ("normal_curve", b1, b2, num, direction),
        lambda: kadam_jax.normal_curve(b1, b2, num, direction=direction),
        check,
    )


SUBJECTS = {
    bounds: (("step", "b1", "b2", "log", "form"), 5),
    regions: (("b1", "b2"), 4),
    strategies: (("b1", "b2", "k", "strategy"), 4),
    optimizer: (("learning_rate", "k", "b1", "b2", "eps", "weight_decay", "updates", "params"), 3),
    members: (("a", "b", "c", "axis", "column", "chunk_size", "batching", "members"), 1),
    norms: (("initial", "learning_rate", "weight_decay"), 2),
    curves: (("c", "num", "b1", "b2", "direction"), 3),
}
"""For each maker of calls, the names that a refusal may mention, and how often it makes one."""


def one(rng):
    """Makes a call: (its subject, how it ended, the finding or None)."""
    subject = rng.choices(list(SUBJECTS), [weight for _, weight in SUBJECTS.values()])[0]
    names, _ = SUBJECTS[subject]
    described, call, check = subject(rng)
    start = time.monotonic()
    try:
        found = jax.block_until_ready(call())
    except (TypeError, ValueError) as error:
        named = any(name in str(error) for name in names)
        how = "refused"
        finding = None if named else f"names no argument: {type(error).__name__}: {error}"
    except Exception as error:
        how, finding = "failed", f"{type(error).__name__}: {error}"
    else:
        how, finding = "answered", None
        try:
            check(found)
        except Wrong as error:
            finding = f"wrong: {error}"
        except Exception as error:
            finding = f"accepted what the reference cannot read: {type(error).__name__}: {error}"
    if (seconds := time.monotonic() - start) > SECONDS:
        finding = f"took {seconds:.0f} s"
    return subject.__name__, how, finding and f"{subject.__name__}{described}: {finding}"


def fuzz(calls, seed):
    """Make calls, print what is found, and return the number of findings."""
    rng, ends, findings = random.Random(seed), collections.Counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(calls):
            subject, how, finding = one(rng)
            ends[subject, how] += 1
            if finding:
                findings.append(finding)
                print(f"call {number}: {finding}", flush=True)
    for (subject, how), count in sorted(ends.items()):
        print(f"{subject:12} {how:9} {count}")
    print(f"{calls} calls with seed {seed}: {len(findings)} findings")
    return len(findings)


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(fuzz(arguments.calls, arguments.seed) > 0)


if __name__ == "__main__":
    main()
