r"""Diagnose an optimizer's stability: `python -m kadam_jax diagnose --b1 0.95 --b2 0.85`.

The answer is one screen of plain words: whether updates are bounded and why, how large they can
get, what happens to parameters whose gradients stop, and what to change. The exit code is 0 if the
optimizer is stable, 1 if it is not and 2 if there is no answer, so that a script can ask before it
trains. All numbers are those of the library's functions in float64.

The theory is that of Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and
Normalization`, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_, made exact for discrete
steps.
"""

import argparse
import ast
import difflib
import inspect
import io
import math
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
import optax

from kadam_jax._checks import (
    DECAY,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DECAY,
    Range,
    check_choice,
    check_integer,
    check_number,
    require,
)
from kadam_jax.batch_size import RULES, critical_batch, decays_for_batch
from kadam_jax.catalog import find_optimizers
from kadam_jax.stability import (
    exact_growth_rate,
    exact_max_update_bound,
    is_exactly_stable,
    stability_coefficient,
)
from kadam_jax.worst_cases import (
    UNBOUNDED,
    WorstCase,
    dead_gradient_growth,
    steps_until_update,
    worst_case,
)

PROG = "python -m kadam_jax"
DECAYS = ("b1", "b2", "b3", "beta", "decay", "momentum", "rho")
STEPS, SEARCHED_STEPS = 10_000, 300  # horizons where the supremum is exact, and where it is sought
TAIL = 2048  # lags from whose end the growth without gradients is read
EDGE = 1e-9  # growth, in nats per step, below which a black box neither grows nor shrinks
SMALLEST = float(np.finfo(np.float32).tiny)  # of squared gradients, where state is float32
LEAST_B2 = float(np.finfo(np.float64).tiny)  # XLA takes smaller numbers for 0
KADAM = "k-Adam is as stable as its last stage: give the last of per_stage_decays as --b1 and --b2"
VERDICTS = {True: "STABLE", False: "UNSTABLE"}
TITLE = "Largest update that any gradients can cause, in learning rates (eps -> 0):"
DEAD = "A parameter whose gradients stop (are 0 from some step on):"
RULE_WORDS = {
    "tokens": "b1 stays, and v remembers as many tokens as before",
    "both": "m and v remember as many tokens as before",
    "sde": "1 - b1 and 1 - b2 grow in proportion to the batch",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {PROG} diagnose --help")


class _Case(NamedTuple):
    """The results of closed forms for one pair of decays."""

    stable: bool
    coefficient: float  # the paper's C
    growth: float  # in nats per step, 0 if stable
    bounds: list[float]  # logarithms, for each number of steps


class _Batch(NamedTuple):
    size: float
    rule: str
    critical: float
    new_size: float  # NaN if there is none
    decays: tuple[float, float] | None  # at the new size


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 stable, 1 unstable, 2 no answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for letters that the encoding lacks
    try:
        args = _parser().parse_args(argv)
        stable, lines = _adam(args) if args.optimizer is None else _black_box(args)
    except SystemExit as stop:  # after --help
        return _write("", int(stop.code or 0))
    except (ValueError, TypeError) as error:
        _say(error)
        return 2
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    return _write("\n".join(lines) + "\n", int(not stable))


def _say(message: object) -> None:
    if sys.stderr is None:
        return  # print would take None for standard output
    try:
        print(f"{PROG}: {message}", file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def _write(text: str, code: int) -> int:
    """Print an answer and return its exit code, which holds even if nobody reads to the end."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            _say(f"standard output cannot be written ({error.strerror}); write it elsewhere")
            return 2
    return code


def _silence(stream: Any) -> None:
    """Redirect a failing stream to nowhere; otherwise Python tries it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROG, description="Questions about optimizers.", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    diagnose = commands.add_parser(
        "diagnose",
        help="is this optimizer stable, and what should change?",
        description="Say whether an optimizer's updates are bounded, and what to change.",
        epilog="Exit code: 0 stable, 1 unstable (here or at --new-batch), 2 no answer.",
        allow_abbrev=False,
    )
    for name, metavar, words in (
        ("--b1", "DECAY", "decay of m, the average of gradients (PyTorch: betas[0]), such as 0.9"),
        ("--b2", "DECAY", "decay of v, the average of squares (PyTorch: betas[1]), such as 0.999"),
        ("--eps", "EPS", "what Adam adds to sqrt(v); default: 1e-8"),
        ("--steps", "N", f"horizon; default: {STEPS}, or {SEARCHED_STEPS} where a search is used"),
        ("--batch", "SIZE", "batch size at which these decays are used"),
        ("--new-batch", "SIZE", "batch size to find decays for"),
        ("--rule", "NAME", f"how decays follow the batch: {', '.join(RULES)}; default: tokens"),
        ("--optimizer", "NAME", "one of optax or optax.contrib, in place of Adam and AdamW"),
    ):
        diagnose.add_argument(name, metavar=metavar, help=words)
    words = "an argument of --optimizer, such as b3=0.9995; may be given several times"
    diagnose.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=words)
    return parser


def _real(name: str, text: str, within: Range, example: str) -> float:
    hint = f"for example {name} {example}"
    try:
        value = float(text)
    except ValueError:
        value = None
    require(value is not None, name, "be a number", repr(text), hint=hint)
    return check_number(name, value, within, hint=hint)


def _whole(name: str, text: str, example: int) -> int:
    hint = f"for example {name} {example}"
    try:
        value = int(text)
    except ValueError:
        value = None
    require(value is not None, name, "be a whole number", repr(text), hint=hint)
    return check_integer(name, value, hint=hint)


def _adam(args: argparse.Namespace) -> tuple[bool, list[str]]:
    """Return whether Adam is stable, and the lines to print, all from closed forms."""
    require(not args.set, "--set", "come with --optimizer", args.set, hint="or leave it out")
    for name, text in (("--b1", args.b1), ("--b2", args.b2)):
        hint = "for example --b1 0.9 --b2 0.999"
        require(text is not None, name, "be given unless --optimizer is", "nothing", hint=hint)
    b1 = _real("--b1", args.b1, DECAY, "0.9")
    b2 = _real("--b2", args.b2, POSITIVE_DECAY, "0.999")
    require(b2 >= LEAST_B2, "--b2", f"be at least {LEAST_B2:.4g}", b2)
    eps = _real("--eps", "1e-8" if args.eps is None else args.eps, NOT_NEGATIVE, "1e-8")
    steps = STEPS if args.steps is None else _whole("--steps", args.steps, STEPS)
    batch = _batch(args, b1, b2)

    safe = {name: nearest(name, b1, b2) for name in ("b1", "b2")}
    pairs = [(b1, b2), (float(safe["b1"] or 0), b2), (b1, float(safe["b2"] or b2))]
    pairs += [batch.decays] if batch and batch.decays else []
    counts = [n for n in (10, 100, 1000) if n < steps] + [steps]
    case, *changed = _closed_forms([*counts, math.inf], pairs)
    limit, new = _from_log(case.bounds[-1]), changed[2:]
    lines = [
        f"Adam or AdamW with b1 = {b1:.12g}, b2 = {b2:.12g}, eps = {eps:.6g}",
        "",
        f"{VERDICTS[case.stable]}: b1^2 = {b1 * b1:.12g} is {'' if case.stable else 'not '}below "
        f"b2 = {b2:.12g}, so "
        + ("updates are bounded." if case.stable else "updates have no bound."),
        *_rounding(b1, b2),
        *(f"UNSTABLE at --new-batch {args.new_batch}, see below." for x in new if not x.stable),
        *_paper(b1, case),
        "",
        TITLE,
        *(
            _row(f"after {_after(n)}", _from_log(bound))
            for n, bound in zip(counts, case.bounds, strict=False)
        ),
        _row("after any number", limit if case.stable else "no bound"),
        "",
        DEAD,
        *_without_gradients(b1, b2, eps),
        "",
        *_memory({"b1, gradients (m)": b1, "b2, squares (v)": b2}),
        "",
        *_advice(b1, b2, safe, case, changed),
    ]
    if batch:
        lines += ["", *_batch_lines(batch, steps, new)]
    return all(x.stable for x in (case, *new)), lines


def _batch(args: argparse.Namespace, b1: float, b2: float) -> _Batch | None:
    """Return what --batch, --new-batch and --rule say."""
    rule = "tokens" if args.rule is None else args.rule
    check_choice("--rule", rule, RULES)
    if args.batch is None:
        for name, text in (("--new-batch", args.new_batch), ("--rule", args.rule)):
            words = "come with --batch, the batch size at which b1 and b2 are used"
            require(text is None, name, words, text, hint="for example --batch 128")
        return None
    size = _real("--batch", args.batch, POSITIVE, "128")
    critical = critical_batch(b1, b2, size, rule=rule)
    if args.new_batch is None:
        return _Batch(size, rule, critical, math.nan, None)
    new_size = _real("--new-batch", args.new_batch, POSITIVE, "1024")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the screen says the same
        try:
            decays = decays_for_batch(b1, b2, size, new_size, rule=rule)
        except ValueError as error:  # the new batch is too large or small; all else is checked
            text = str(error).replace("batch=", "--batch ").replace("rule=", "--rule ")
            raise ValueError(text.replace("new_batch", "--new-batch", 1)) from error
    words, hint = f"have a b2 of at least {LEAST_B2:.4g}", f"choose one closer to --batch {size:g}"
    require(decays[1] >= LEAST_B2, "--new-batch", words, decays[1], hint=hint)
    return _Batch(size, rule, critical, new_size, decays)


def _closed_forms(counts: list[float], pairs: list[tuple[float, float]]) -> list[_Case]:
    """Evaluate everything for all pairs of decays in one program, after each number of steps."""

    @jax.jit
    def evaluate(steps, b1, b2):
        bounds = exact_max_update_bound(steps[:, None], b1, b2, log=True)
        coefficient = stability_coefficient(b1, b2)
        return is_exactly_stable(b1, b2), coefficient, exact_growth_rate(b1, b2), bounds.T

    with jax.enable_x64(True):
        columns = map(np.asarray, evaluate(np.subtract(counts, 1.0), *np.array(pairs).T))
        return [_Case(*values) for values in zip(*(x.tolist() for x in columns), strict=True)]


def _rounding(b1: float, b2: float) -> list[str]:
    """Return a warning if the boundary is so near that rounding of b1 and b2 decides."""
    gap = float(Fraction(b1) ** 2 - Fraction(b2))
    if gap == 0 or abs(gap) > 1e-12 * b2:
        return []
    return [f"Only rounding decides this: b1^2 - b2 = {gap:.1e} in float64. Keep a margin."]


def _paper(b1: float, case: _Case) -> list[str]:
    """Return what the paper's condition says."""
    condition = "Theorem 1 (arXiv 2411.05746), C = 2/b1 - 1/b2 - 1 > 0,"
    if b1 == 0:
        return [f"{condition} is not defined at b1 = 0."]
    holds = case.coefficient > 0
    lines = [f"{condition} {'holds' if holds else 'fails'}: C = {_sig(case.coefficient)}."]
    if case.stable and not holds:
        lines.append(
            "Theorem 1 is for continuous time; the one for steps, b1^2 < b2, is what counts."
        )
    return lines


def _without_gradients(b1: float, b2: float, eps: float) -> list[str]:
    """Return what happens to Adam's update once gradients stop, with bias corrections at 1."""
    if b1 == 0:
        return ["  Its update is 0 at once."]
    excess = float(Fraction(b1) ** 2 / Fraction(b2) - 1)  # exact even close to the boundary
    rate = math.log1p(excess) / 2 if excess > -0.5 else math.log(b1) - math.log(b2) / 2
    lines = [_growth_line(rate)]
    if rate <= 0:
        return lines
    if eps > 0:
        peak, at_peak = _peak(b1, b2, eps)
        until = math.ceil(2 * math.log(eps) / math.log(b2))
        lines += (
            [
                f"  After gradients of 1, eps ends it: sqrt(v) falls to {eps:g} in "
                f"{_after(until)};",
                f"  the update is {_from_log(_log_update(until, b1, b2, eps))} then, and at most "
                f"{_from_log(at_peak)} after {_after(peak)}.",
            ]
            if peak and until > 0
            else [f"  After gradients of size 1, eps = {eps:g} is so large that it does not grow."]
        )
    if eps < math.sqrt(SMALLEST):
        end = math.ceil(math.log(SMALLEST) / math.log(b2))
        jump = f"{_from_log(end * math.log(b1) - math.log(eps))}" if eps else "infinity"
        lines += [
            f"  A v that is stored in float32 is lost to underflow after {_after(end)}: then the",
            f"  update jumps from {_from_log(_log_update(end, b1, b2, eps))} to m/eps = {jump}.",
        ]
    return lines


def _log_update(count: int, b1: float, b2: float, eps: float) -> float:
    """Return ln of |u| after `count` steps without gradients, if m = v = 1 before."""
    log_eps = math.log(eps) if eps else -math.inf
    return count * math.log(b1) - float(np.logaddexp(count * math.log(b2) / 2, log_eps))


def _peak(b1: float, b2: float, eps: float) -> tuple[int, float]:
    """Return the step at which a growing update is largest, and its logarithm there.

    The derivative of b1^j/(b2^(j/2) + eps) with respect to j vanishes where sqrt(v) = b2^(j/2) is
    eps ln(1/b1) / ln(b1/sqrt(b2)).
    """
    log_root = math.log(eps) + math.log(-math.log(b1) / (math.log(b1) - math.log(b2) / 2))
    place = max(0.0, 2 * log_root / math.log(b2))
    nearby = {math.floor(place), math.ceil(place)}
    return max(((j, _log_update(j, b1, b2, eps)) for j in sorted(nearby)), key=lambda x: x[1])


def _growth_line(rate: float) -> str:
    if abs(rate) < 1e-12:
        return "  Its update neither grows nor shrinks" + (", up to rounding." if rate else ".")
    if math.isinf(rate):
        return f"  Its update {'stops with the gradients' if rate < 0 else 'is infinite at once'}."
    verb, nats = "grows" if rate > 0 else "shrinks", f"{_sig(abs(rate))} nats"
    percent = f"{_sig(100 * abs(math.expm1(rate)))}% a step ({nats})"
    amount = percent if abs(rate) > 1e-6 else f"{nats} a step"
    return f"  Its update {verb} by {amount}, e-fold in {_sig(1 / abs(rate))} steps."


def _memory(decays: dict[str, float]) -> list[str]:
    """Return how long averages remember; a decay of 0 remembers the last step."""
    lines = ["Memory, in steps:"]
    for label, decay in decays.items():
        half = math.log(2) / -math.log(decay) if decay else 0.0
        name = label.partition(",")[0]
        lines.append(_row(label, f"1/(1-{name}) = {_sig(1 / (1 - decay))}, half-life {_sig(half)}"))
    return lines


def _advice(
    b1: float, b2: float, safe: dict[str, Decimal | None], case: _Case, changed: list[_Case]
) -> list[str]:
    """Return how far decays are from the boundary, or what would be on its other side."""
    if case.stable:
        return [
            f"Room for change: with this b2, any b1 below {_edge(math.sqrt(b2))} is stable;",
            f"with this b1, any b2 above {_edge(b1 * b1)}.",
        ]
    boundaries = {"b1": f"below {_edge(math.sqrt(b2))}", "b2": f"above {_edge(b1 * b1)}"}
    lines = ["What to change, one of:"]
    for (name, value), new in zip(safe.items(), changed, strict=False):
        words = f"{boundaries[name]}: at {value} no update exceeds {_from_log(new.bounds[-1])}"
        lines.append(_row(name, words if value else "no value of float64 is safe"))
    lines.append(_row("both", "b1 = b2, where no update exceeds 1"))
    return lines


def nearest(name: str, slow: float, b2: float) -> Decimal | None:
    """Return the nearest `name` with slow^2 < b2 and few digits; None if float64 has none.

    For "b2" it is a larger value, and for any other name a smaller value of `slow`. It keeps two
    digits of the decay or of its distance from 1, whichever is smaller, or more where needed.
    """
    exact = Context(prec=400)
    edge = exact.power(Decimal(slow), 2) if name == "b2" else exact.sqrt(Decimal(repr(b2)))
    up = name == "b2"
    for digits in range(2, 18):
        small = edge < Decimal("0.5")
        rest = edge if small else 1 - edge
        unit = Decimal(1).scaleb(rest.adjusted() - digits + 1) if rest else Decimal(0)
        rounding = ROUND_UP if up == small else ROUND_DOWN if up else ROUND_UP
        rest = rest.quantize(unit, rounding, Context(prec=400))
        value = rest if small else 1 - rest
        for candidate in (value, value + unit if up else value - unit):
            new = Fraction(float(candidate))
            holds = Fraction(slow) ** 2 < new < 1 if up else new >= 0 and new**2 < Fraction(b2)
            if holds:
                return candidate.normalize()
    return None


def _batch_lines(batch: _Batch, steps: int, new: list[_Case]) -> list[str]:
    """Return where the batch size crosses the boundary, and what holds at the new batch size."""
    critical = batch.critical
    where = (
        "all batch sizes are stable"
        if critical == math.inf
        else f"batches below B* = {_sig(critical)} are stable"
        if critical
        else "no batch size is stable"
    )
    lines = [f"Batch size, by rule {batch.rule} ({RULE_WORDS[batch.rule]}):"]
    lines.append(f"  With these decays used at batch {batch.size:g}, {where}.")
    for case in new:
        b1, b2 = batch.decays or (math.nan, math.nan)
        lines += [
            f"  At batch {batch.new_size:g}, b1 = {b1:.6g} and b2 = {b2:.6g} are "
            f"{VERDICTS[case.stable]}:",
            f"  updates can reach {_from_log(case.bounds[-2])} after {_after(steps)}"
            + (
                f", {_from_log(case.bounds[-1])} after any number."
                if case.stable
                else ". To be stable there,"
            ),
        ]
        if not case.stable:
            lower, higher = _edge(math.sqrt(b2)), _edge(b1**2)
            lines.append(f"  b1 has to be below {lower}, or b2 above {higher}.")
    return lines


# Any other optimizer.


def _value(text: str) -> Any:
    """Return the Python value of an argument; words that are not Python are strings."""
    words = {"true": True, "false": False, "none": None}
    try:
        return words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _arguments(args: argparse.Namespace, maker: Callable) -> dict[str, Any]:
    """Return the optimizer's arguments: those that the user gave, and defaults."""
    example = "for example --set b3=0.9995"
    given = {}
    for name in ("b1", "b2"):
        if getattr(args, name) is not None:
            given[name] = _real(f"--{name}", getattr(args, name), DECAY, "0.9")
    for text in args.set:
        name, equals, value = text.partition("=")
        require(name and equals, "--set", "be NAME=VALUE", repr(text), hint=example)
        require(name not in given, f"--set {name}", "be given once", repr(text), hint="drop one")
        given[name] = _value(value)
    _, *parameters = inspect.signature(maker).parameters.values()  # the first is the learning rate
    defaults = {parameter.name: parameter.default for parameter in parameters}
    for name, value in given.items():
        words = f"be an argument of {args.optimizer}: {', '.join(defaults) or 'it has none'}"
        require(name in defaults, "--set", words, repr(name), hint=example)
        _check_argument(name, value, defaults[name])
    arguments = defaults | given
    missing = [k for k, value in arguments.items() if value is inspect.Parameter.empty]
    words, hint = f"give what {args.optimizer} needs, {', '.join(missing)}", "each as NAME=VALUE"
    require(not missing, "--set", words, args.set or "nothing", hint=hint)
    return arguments


def _is_decay(name: str, value: Any) -> bool:
    return name in DECAYS and isinstance(value, float | int) and 0 <= value < 1


def _check_argument(name: str, value: Any, default: Any) -> None:
    """Check that a value is what an argument with this default takes."""
    option = f"--set {name}"
    is_number = isinstance(default, int | float)
    if isinstance(default, bool):
        hint = f"for example {option}=true"
        require(isinstance(value, bool), option, "be true or false", repr(value), hint=hint)
    elif is_number or (name in DECAYS and value is not None):
        is_decay = default is None or _is_decay(name, default)
        hint = f"for example {option}={default if is_number else 0.9}"
        check_number(option, value, DECAY if is_decay else NOT_NEGATIVE, hint=hint)
    elif isinstance(default, tuple):
        words, hint = f"be {len(default)} values", f"for example '{option}={default}'"
        is_tuple = isinstance(value, tuple) and len(value) == len(default)
        require(is_tuple, option, words, repr(value), hint=hint)
    elif "dtype" not in name:
        words = "be a number, true, false or none"
        require(not isinstance(value, str), option, words, repr(value), hint="or leave it out")


def _black_box(args: argparse.Namespace) -> tuple[bool, list[str]]:
    """Return whether another optimizer is stable, and the lines to print, from its derivatives."""
    makers = find_optimizers()
    near = difflib.get_close_matches(args.optimizer.lower(), makers, 1)
    hint = KADAM if args.optimizer == "kadam" else f"perhaps {near[0]}" if near else ""
    check_choice("--optimizer", args.optimizer, makers, hint=hint)
    for name in ("eps", "batch", "new_batch", "rule"):
        option, value = f"--{name.replace('_', '-')}", getattr(args, name)
        words = "be left out with --optimizer, whose answers are for eps -> 0 and one batch size"
        hint = "Adam and AdamW need no --optimizer: give --b1 and --b2"
        require(value is None, option, words, value, hint=hint)
    arguments = _arguments(args, makers[args.optimizer])
    steps = None if args.steps is None else _whole("--steps", args.steps, STEPS)
    try:
        optimizer = makers[args.optimizer](1.0, **arguments)
        return _read(args, steps, optimizer, arguments)
    except Exception as error:  # whatever an optimizer raises about its arguments or its updates
        first = (str(error).splitlines() or [""])[0]
        reason = first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"
        raise ValueError(f"no answer for {args.optimizer}: {reason}") from error


def _read(
    args: argparse.Namespace,
    steps: int | None,
    optimizer: optax.GradientTransformation,
    arguments: dict[str, Any],
) -> tuple[bool, list[str]]:
    """Return whether an optimizer is stable, and the lines to print."""
    if steps is None:
        steps = STEPS if worst_case(optimizer, 100, search_steps=1).exact else SEARCHED_STEPS
    counts = [n for n in (10, 100, 1000) if n < steps] + [steps]
    results = [worst_case(optimizer, n) for n in counts]
    last = results[-1]
    if last.reason == UNBOUNDED:
        raise ValueError(f"{last.reason}; a clip gives it one, such as optax.clip_by_global_norm")
    growth = dead_gradient_growth(optimizer, num_steps=TAIL)
    unstable = growth > (-EDGE if last.exact else EDGE)
    if math.isnan(growth):
        raise ValueError(
            "what its update does without gradients depends on their former size; normalize them "
            "first, such as with optax.normalize_by_update_norm, and ask worst_case in Python"
        )
    decays = {name: x for name, x in arguments.items() if _is_decay(name, x)}
    shown = [
        f"{k} = {v}" for k, v in arguments.items() if k in decays or f"{k}=" in " ".join(args.set)
    ]
    lines = [
        *textwrap.wrap(" with ".join(filter(None, [args.optimizer, ", ".join(shown)])), 80),
        "",
        *_black_box_verdict(unstable, last.exact, growth),
        "",
        TITLE,
        *(
            _row(f"after {_after(n)}", _reached(result))
            for n, result in zip(counts, results, strict=True)
        ),
    ]
    if last.exact and not last.attained > 0.99 * last.supremum:
        lines.append("  The run falls short where its gradients would leave float64's range.")
    if not last.exact:
        lines += [
            "  Not exact: " + line if i == 0 else "  " + line
            for i, line in enumerate(textwrap.wrap(last.reason + ".", 66))
        ]
    lines += ["", DEAD, _growth_line(0.0 if abs(growth) < EDGE else growth)]
    if growth > EDGE:
        until = steps_until_update(optimizer, 1000.0, num_steps=TAIL)
        lines.append(f"  After a single gradient it passes 1,000 in {_after(int(until))},")
        lines.append("  unless eps ends its growth before that.")
    lines += ["", *_memory(decays)] if decays else []
    lines += ["", *_black_box_advice(unstable, growth, decays)]
    return not unstable, lines


def _black_box_verdict(unstable: bool, exact: bool, growth: float) -> list[str]:
    if unstable:
        words = "grow once gradients stop" if growth > EDGE else "never fade once gradients stop"
        return [f"UNSTABLE: updates {words}, so nothing bounds them."]
    if exact:
        return [
            "STABLE: the memory of past gradients fades faster than that of their size, so",
            "updates are bounded.",
        ]
    return [
        "STABLE AS FAR AS KNOWN: updates do not grow once gradients stop. Whether",
        "anything else can make them large is not known.",
    ]


def _reached(result: WorstCase) -> str:
    if not result.exact:
        return f"at least {_sig(result.supremum)}"
    return f"{_sig(result.supremum)}, exact; in a run of the optimizer {_sig(result.attained)}"


def _black_box_advice(unstable: bool, growth: float, decays: dict[str, float]) -> list[str]:
    """Return which decay to change: the one that rules the tail, r_j ~ (decay / sqrt(b2))^j."""
    if not unstable:
        return ["Nothing has to change, as far as this command can tell."]
    b2 = decays.get("b2", math.nan)
    slowest = math.exp(growth) * math.sqrt(b2)
    names = [name for name, x in decays.items() if name != "b2" and abs(x - slowest) < 1e-6]
    if not names:
        return [
            "What to change: raise the decay of squared gradients, or lower those of gradients,",
            "until updates do not grow. Which decay is at fault is not known for this optimizer.",
        ]
    slow = decays[names[0]]
    lower, higher = nearest(names[0], slow, b2), nearest("b2", slow, b2)
    return [
        "What to change, one of:",
        _row(names[0], f"below {_edge(math.sqrt(b2))}, for example {lower}"),
        _row("b2", f"above {_edge(slow**2)}, for example {higher}"),
    ]


# Numbers and words.


def _row(label: str, text: str) -> str:
    return f"  {label:<22}  {text}"


def _edge(decay: float) -> str:
    """Return a decay below 1 with eight digits, or with all if it would read 1."""
    text = f"{decay:.8g}"
    return f"{decay:.17g}" if text == "1" else text


def _after(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _sig(x: float) -> str:
    """Return a number with four digits, and with an exponent only where it is far from 1."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    place = math.floor(math.log10(abs(x)))
    if not -5 < place < 7:
        return f"{x:.3e}"
    text = f"{x:,.{max(0, 3 - place)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _from_log(log: float) -> str:
    """Return the number with this natural logarithm, which may be outside float64's range."""
    if abs(log) < 16 or math.isinf(log):
        return _sig(math.exp(log))
    exponent = math.floor(log / math.log(10) + 2e-4)  # no mantissa is rounded to 10
    return f"{math.exp(log - exponent * math.log(10)):.3f}e{exponent:+03d}"


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # leave accelerators and their memory to training
    sys.exit(main())
