"""Tests of `python -m kadam_jax diagnose`: exit codes, numbers, advice and messages."""

import math
import os
import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kadam_jax.__main__ as cli
from kadam_jax import (
    critical_batch,
    dead_gradient_growth,
    decays_for_batch,
    exact_growth_rate,
    exact_max_update_bound,
    stability_coefficient,
    steps_until_update,
    worst_case,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def diagnose(capsys):
    """Return a function from a command line to its exit code, output and message."""

    def run(line):
        code = cli.main(["diagnose", *line.split()])
        return code, *capsys.readouterr()

    return run


def shown(pattern, text):
    """Return the only number in `text` that a pattern finds."""
    (found,) = re.findall(pattern.replace("#", r"(-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?)"), text)
    return float(found.replace(",", ""))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--b1 .9 --b2 .999", 0),
        ("--b1 .95 --b2 .85", 1),
        ("--b1 .5 --b2 .25", 1),  # on the boundary
        ("--b1 0 --b2 .1", 0),
        ("--b1 .25 --b2 .1", 0),  # where the paper's condition fails
        ("--b1 .95 --b2 .98 --batch 128", 0),
        ("--b1 .95 --b2 .98 --batch 128 --new-batch 512", 0),
        ("--b1 .95 --b2 .98 --batch 128 --new-batch 1024", 1),
        ("--b1 .95 --b2 .98 --batch 128 --new-batch 1024 --rule both", 0),
        ("--b1 .95 --b2 .85 --batch 1024 --new-batch 128", 1),
    ],
)
def test_exit_code_says_whether_it_is_stable(diagnose, line, code):
    found, text, message = diagnose(line)
    assert (found, message) == (code, "")
    assert ("UNSTABLE" in text) == (code == 1)


def test_the_headline_names_an_unstable_new_batch(diagnose):
    for batch, is_stable in ((512, True), (1024, False)):
        _, text, _ = diagnose(f"--b1 .95 --b2 .98 --batch 128 --new-batch {batch}")
        headline = text.split("\n\n")[1]
        assert (f"UNSTABLE at --new-batch {batch}, see below." in headline) != is_stable


def test_a_run_that_falls_short_says_why(diagnose):
    for steps, falls_short in ((20, False), (10_000, True)):
        _, text, _ = diagnose(f"--optimizer adamw --b1 .95 --b2 .85 --steps {steps}")
        assert (
            "falls short where its gradients would leave float64's range" in text
        ) == falls_short


@pytest.mark.parametrize(("b1", "b2"), [(0.95, 0.85), (0.9, 0.999), (0.99, 0.95)])
def test_numbers_are_those_of_the_functions(diagnose, x64, b1, b2):
    code, text, _ = diagnose(f"--b1 {b1} --b2 {b2} --steps 2000")
    for count in (10, 100, 1000, 2000):
        bound = float(exact_max_update_bound(count - 1, b1, b2))
        assert shown(rf"after {count:,} steps +#", text) == pytest.approx(bound, rel=1e-3)
    assert shown(": C = #", text) == pytest.approx(float(stability_coefficient(b1, b2)), rel=1e-3)
    assert shown(r"1/\(1-b1\) = #,", text) == pytest.approx(1 / (1 - b1), rel=1e-3)
    assert shown(r"squares.*half-life #", text) == pytest.approx(
        math.log(0.5) / math.log(b2), rel=1e-3
    )
    rate = float(exact_growth_rate(b1, b2)) or math.log(math.sqrt(b2) / b1)
    assert shown(r"\(# nats\)", text) == pytest.approx(rate, rel=1e-3)
    assert shown("e-fold in # steps", text) == pytest.approx(1 / rate, rel=1e-3)
    if code:
        assert "no bound" in text
    else:
        limit = float(exact_max_update_bound(np.inf, b1, b2))
        assert shown("after any number +#", text) == pytest.approx(limit, rel=1e-3)


def test_bounds_beyond_float64_are_printed(diagnose, x64):
    _, text, _ = diagnose("--b1 .99 --b2 .5 --steps 100000")
    mantissa, exponent = re.search(r"after 100,000 steps +([\d.]+)e\+(\d+)", text).groups()
    log = float(exact_max_update_bound(99_999, 0.99, 0.5, log=True))
    assert math.log(float(mantissa)) + int(exponent) * math.log(10) == pytest.approx(log, abs=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("rule", ["tokens", "sde"])
def test_batches_are_those_of_the_functions(diagnose, x64, rule):
    line = f"--b1 .95 --b2 .98 --batch 128 --new-batch 1024 --rule {rule}"
    _, text, _ = diagnose(line)
    b1, b2 = decays_for_batch(0.95, 0.98, 128, 1024, rule=rule)
    assert f"At batch 1024, b1 = {b1:.6g} and b2 = {b2:.6g} are" in text
    bound = float(exact_max_update_bound(9_999, b1, b2))
    assert shown("updates can reach # after", text) == pytest.approx(bound, rel=1e-3)
    critical = critical_batch(0.95, 0.98, 128, rule=rule)
    if math.isfinite(critical):
        assert shown(r"B\* = # ", text) == pytest.approx(critical, rel=1e-3)


@pytest.mark.parametrize(("b1", "b2"), [(0.95, 0.85), (0.99, 0.95), (0.5, 0.25), (0.9999, 0.9)])
@pytest.mark.parametrize("name", ["b1", "b2"])
def test_advice_cures_it(diagnose, b1, b2, name):
    _, text, _ = diagnose(f"--b1 {b1} --b2 {b2}")
    pattern = rf"  {name} .*: at (\S+) no update exceeds (.*)"
    value, limit = re.search(pattern, text).groups()
    changed = {"b1": b1, "b2": b2} | {name: value}
    code, text, _ = diagnose(f"--b1 {changed['b1']} --b2 {changed['b2']}")
    assert code == 0
    assert f"after any number        {limit}\n" in text


@given(st.floats(1e-3, 1 - 1e-6), st.floats(1e-6, 1 - 1e-6))
def test_nearest_safe_decay_is_safe_near_and_short(b1, b2):
    first, second = cli.nearest("b1", b1, b2), cli.nearest("b2", b1, b2)
    assert Fraction(float(first)) ** 2 < Fraction(b2)
    assert Fraction(b1) ** 2 < Fraction(float(second)) < 1
    for value, edge in ((first, math.sqrt(b2)), (second, b1**2)):
        assert abs(float(value) - edge) <= 0.11 * min(edge, 1 - edge)
        assert len(min(value, 1 - value).as_tuple().digits) <= 2


def test_nearest_safe_decay_leaves_the_boundary_or_does_not_exist():
    assert cli.nearest("b1", 0.5, 0.25) == Decimal("0.49")
    assert cli.nearest("b2", 0.5, 0.25) == Decimal("0.26")
    assert cli.nearest("b2", math.nextafter(1, 0), 0.5) is None


@pytest.mark.parametrize(("b2", "eps"), [(0.85, 1e-8), (0.8, 1e-5)])
def test_eps_ends_growth_as_in_a_run(diagnose, b2, eps):
    _, text, _ = diagnose(f"--b1 .95 --b2 {b2} --eps {eps}")
    updates = after_gradients_of_one(0.95, b2, eps)
    assert shown("and at most # after", text) == pytest.approx(updates.max(), rel=1e-3)
    assert shown(r"at most .* after # steps\.", text) == updates.argmax()
    until = int(shown(r"falls to .* in # steps;", text))
    assert 0 <= math.log(eps) - until * math.log(b2) / 2 < -math.log(b2) / 2
    assert shown("the update is # then", text) == pytest.approx(updates[until], rel=1e-3)


@pytest.mark.parametrize("eps", [0.0, 1e-30])
def test_float32_underflows_as_in_a_run(diagnose, eps):
    _, text, _ = diagnose(f"--b1 .95 --b2 .851 --eps {eps}")
    updates = after_gradients_of_one(0.95, 0.851, eps)
    end = int(shown("lost to underflow after # steps", text))
    before, jump = re.search(r"jumps from (\S+) to m/eps = (\S+)\.", text).groups()
    assert updates[end - 1] < float(before.replace(",", "")) < 1.1 * updates[end - 1]
    assert updates[end] == pytest.approx(float(jump), rel=1e-3)


def after_gradients_of_one(b1, b2, eps):
    """Return optax's updates in float32, from the last of many gradients of 1 on."""
    optimizer = optax.scale_by_adam(b1, b2, eps=eps)

    def advance(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, update

    gradients = jnp.concatenate([jnp.ones(1000), jnp.zeros(800)])
    updates = jax.lax.scan(advance, optimizer.init(jnp.zeros(())), gradients)[1]
    return np.asarray(updates)[999:]


@pytest.mark.parametrize("eps", ["3", "1e+308"])
def test_large_eps_means_no_growth(diagnose, eps):
    _, text, _ = diagnose(f"--b1 .95 --b2 .85 --eps {eps}")
    assert f"eps = {eps} is so large that it does not grow" in text
    assert after_gradients_of_one(0.95, 0.85, min(float(eps), 3e38)).argmax() == 0


def test_adam_is_answered_by_one_small_program(diagnose, monkeypatch, caplog):
    for name in ("worst_case", "dead_gradient_growth", "steps_until_update"):
        monkeypatch.delattr(cli, name)
    with jax.log_compiles():
        assert diagnose("--b1 .95 --b2 .85 --batch 128 --new-batch 256")[0] == 1
    compiled = [record for record in caplog.records if "Finished XLA comp" in record.message]
    assert len(compiled) == 1


def test_other_optimizers_are_read_from_their_derivatives(diagnose):
    line = "--optimizer simplified_ademamix --b1 .98 --set alpha=0.5 --steps 60"
    code, text, _ = diagnose(line)
    optimizer = optax.contrib.simplified_ademamix(1.0, b1=0.98, alpha=0.5)
    assert code == 1
    assert text.startswith("simplified_ademamix with b1 = 0.98, b2 = 0.95, alpha = 0.5\n")
    result = worst_case(optimizer, 60)
    exact = re.search(r"after 60 steps +(\S+), exact; in a run of the optimizer (\S+)", text)
    assert [float(x.replace(",", "")) for x in exact.groups()] == pytest.approx(
        [result.supremum, result.attained], rel=1e-3
    )
    growth = dead_gradient_growth(optimizer)
    assert shown(r"\(# nats\)", text) == pytest.approx(growth, rel=1e-3)
    assert shown("passes 1,000 in # step", text) == steps_until_update(optimizer, 1e3)
    for name, value in re.findall(r"  (b\d) .*for example (\S+)", text):
        settings = {"b1": 0.98, "b2": 0.95} | {name: float(value)}
        assert dead_gradient_growth(optax.contrib.simplified_ademamix(1.0, **settings)) < 0


def test_the_decay_at_fault_is_found(diagnose):
    code, text, _ = diagnose("--optimizer ademamix --steps 20")
    assert code == 1
    assert "  b3                      below 0.99949987, for example 0.99949" in text
    code, text, _ = diagnose("--optimizer ademamix --set b3=.99949 --steps 20")
    assert code == 0
    assert "STABLE: " in text


def test_the_result_of_a_search_is_called_a_lower_bound(diagnose):
    code, text, _ = diagnose("--optimizer rmsprop --set momentum=.9 --steps 5")
    assert code == 0
    assert "STABLE AS FAR AS KNOWN" in text
    supremum = worst_case(optax.rmsprop(1.0, momentum=0.9), 5).supremum
    assert shown("after 5 steps +at least #", text) == pytest.approx(supremum, rel=1e-3)
    assert "Not exact: the update is not a weighted sum" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--b1 .9", "--b2 must be given unless --optimizer is, got nothing; for example --b1"),
        ("", "--b1 must be given"),
        ("--b1 1 --b2 .9", "--b1 must be in [0, 1), got 1.0; for example --b1 0.9"),
        ("--b1 -.5 --b2 .9", "--b1 must be in [0, 1), got -0.5"),
        ("--b1 .9 --b2 0", "--b2 must be in (0, 1), got 0.0; for example --b2 0.999"),
        ("--b1 0 --b2 1e-310", "--b2 must be at least 2.225e-308, got 1e-310"),
        ("--b1 .9 --b2 1e-320", "--b2 must be at least 2.225e-308, got 1e-320"),
        ("--b1 nan --b2 .9", "--b1 must be in [0, 1), got nan"),
        ("--b1 high --b2 .9", "--b1 must be a number, got 'high'; for example --b1 0.9"),
        ("--b1 .9 --b2", "argument --b2: expected one argument; see"),
        ("--b1 .9 --b2 .9 --eps -1", "--eps must be finite and at least 0, got -1.0"),
        ("--b1 .9 --b2 .9 --eps=", "--eps must be a number, got ''; for example --eps 1e-8"),
        ("--b1 .9 --b2 .9 --steps=", "--steps must be a whole number, got ''; for example"),
        ("--b1 .9 --b2 .9 --batch 1 --rule=", "--rule must be one of tokens, both, sde, got ''"),
        ("--b1 .9 --b2 .9 --steps 0", "--steps must be at least 1, got 0"),
        ("--b1 .9 --b2 .9 --steps 1e4", "--steps must be a whole number, got '1e4'; for"),
        ("--b1 .9 --b2 .9 --steps 9999999999", "--steps must be below 2**31"),
        ("--b1 .9 --b2 .9 --batch 0", "--batch must be finite and above 0, got 0.0"),
        ("--b1 .9 --b2 .9 --new-batch 9", "--new-batch must come with --batch, the batch size"),
        ("--b1 .9 --b2 .9 --rule sde", "--rule must come with --batch"),
        ("--b1 .9 --b2 .9 --batch 1 --rule x", "--rule must be one of tokens, both, sde, got 'x'"),
        ("--b1 .9 --b2 .9 --batch 1 --new-batch 1e9", "--new-batch must have decays that float64"),
        (
            "--b1 .9 --b2 .5 --batch 1 --new-batch 1030",
            "--new-batch must have a b2 of at least 2.225e-308, got 8.69",
        ),
        (
            "--b1 .9 --b2 .9 --batch 1 --new-batch 20 --rule sde",
            "--new-batch must be below 10 ",
        ),
        ("--b1 .9 --b2 .9 --set b3=.9", "--set must come with --optimizer, got ['b3=.9']; or"),
        ("--b1 .9 --b2 .9 --beta 3", "unrecognized arguments: --beta 3; see"),
        ("--optimizer adamm", "--optimizer must be one of acprop, adabelief, "),
        ("--optimizer é", "--optimizer must be one of acprop, adabelief, "),
        ("--optimizer adam --eps 1e-8", "--eps must be left out with --optimizer, whose"),
        ("--optimizer adam --batch 9", "--batch must be left out with --optimizer"),
        ("--optimizer adam --set b3=.9", "--set must be an argument of adam: b1, b2, eps, "),
        ("--optimizer adam --set b1", "--set must be NAME=VALUE, got 'b1'; for example"),
        (
            "--optimizer adam --set b1=2",
            "--set b1 must be in [0, 1), got 2; for example --set",
        ),
        (
            "--optimizer adam --set b1=x",
            "--set b1 must be a real number (Python, NumPy or JAX), ",
        ),
        *(
            (f"--optimizer adam --set b1={text}", "--set b1 must be a real number (Python, NumPy")
            for text in ("-" * 9999 + "1", "(" * 9999, "9" * 9999, "{[]}")
        ),
        ("--optimizer adam --b1 .9 --set b1=.8", "--set b1 must be given once, got 'b1=.8'"),
        ("--optimizer adam --steps 0", "--steps must be at least 1, got 0"),
        ("--optimizer adam --set eps=x", "--set eps must be a real number (Python, NumPy or JAX)"),
        ("--optimizer adam --set eps=-1", "--set eps must be finite and at least 0, got -1; for"),
        ("--optimizer adam --set nesterov=3", "--set nesterov must be true or false, got 3; for"),
        ("--optimizer simplified_ademamix --set alpha=-5", "--set alpha must be finite and at"),
        ("--optimizer sgd --set momentum=-1", "--set momentum must be in [0, 1), got -1; for"),
        ("--optimizer adamw --set mask=x", "--set mask must be a number, true, false or none, got"),
        ("--optimizer prodigy --set betas=x", "--set betas must be 2 values, got 'x'; for example"),
        ("--optimizer sgd", "no answer for sgd: the update grows with the scale of the"),
        ("--optimizer lars --steps 3", "no answer for lars: what its update does without"),
        ("--optimizer lbfgs", "no answer for lbfgs: optimizer must update from gradients and"),
        ("--optimizer dpsgd", "--set must give what dpsgd needs, l2_norm_clip, noise_multiplier, "),
    ],
)
def test_a_usage_error_is_one_sentence_and_code_2(diagnose, line, words):
    code, text, message = diagnose(line)
    assert (code, text) == (2, "")
    assert message.startswith(f"python -m kadam_jax: {words}")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--optimizer AdamW", "got 'AdamW'; perhaps adamw\n"),
        ("--optimizer kadam", "as its last stage: give the last of per_stage_decays as --b1 and"),
        ("--optimizer sgd", "; a clip gives it one, such as optax.clip_by_global_norm\n"),
        ("--optimizer adamw --eps 1e-6", "; Adam and AdamW need no --optimizer: give --b1"),
        ("--optimizer lars --steps 3", "; normalize them first, such as with optax.normalize_by"),
        ("--b1 .9 --b2 .9 --batch 1 --new-batch 1e9", "; choose one closer to --batch 1\n"),
        ("--betas .9 .95", "; see python -m kadam_jax diagnose --help\n"),
    ],
)
def test_a_message_says_what_to_do(diagnose, line, words):
    assert words in diagnose(line)[2]


@pytest.mark.parametrize(
    ("line", "is_said"),
    [("--b1 .95 --b2 .9025", True), ("--b1 .5 --b2 .25", False), ("--b1 .95 --b2 .90251", False)],
)
def test_a_verdict_by_rounding_says_so(diagnose, line, is_said):
    text = diagnose(line)[1]
    assert ("Only rounding decides this" in text) == is_said
    assert ("neither grows nor shrinks, up to rounding" in text) == is_said


def test_an_edge_next_to_one_does_not_read_one(diagnose):
    text = diagnose("--b1 .9999999999 --b2 .9999999999")[1]
    assert 0.9999999999 < shown("any b1 below # is", text) < 1
    assert shown(r"any b2 above #\.\n", text) < 0.9999999999


def test_growth_next_to_the_boundary_is_exact(diagnose):
    text = diagnose("--b1 .95 --b2 .902500001")[1]
    excess = Fraction(0.95) ** 2 / Fraction(0.902500001) - 1
    assert shown("shrinks by # nats", text) == pytest.approx(-float(excess) / 2, rel=1e-3)


def test_every_optimizer_of_the_figures_is_known(diagnose):
    assert diagnose("--optimizer nadam --steps 3")[0] == 0
    assert "nadam" in cli.find_optimizers()


def test_without_memory_in_the_denominator_updates_are_infinite(diagnose):
    code, text, _ = diagnose("--optimizer adam --set b2=0 --steps 3")
    assert code == 1
    assert "Its update is infinite at once." in text


def test_a_bound_at_parameters_of_zero_says_so(diagnose):
    text = " ".join(diagnose("--optimizer adafactor --steps 3")[1].split())
    assert "a search with parameters at 0, where some optimizers move least, found this." in text


def test_memory_is_called_m_and_v_only_where_it_is_known(diagnose):
    assert "b2, squares (v)" in diagnose("--b1 .9 --b2 .99")[1]
    assert "squares (v)" not in diagnose("--optimizer lion --steps 3")[1]


def test_a_command_is_needed(capsys):
    assert cli.main([]) == 2
    assert "the following arguments are required: COMMAND; see" in capsys.readouterr().err
    assert cli.main(["diagnose", "--help"]) == 0
    assert "Exit code: 0 stable, 1 unstable" in capsys.readouterr().out


def test_a_screen_is_80_columns_wide_and_34_lines_high(diagnose):
    for line in (
        "--b1 .95 --b2 .85",
        "--b1 .25 --b2 .1 --batch 128 --new-batch 1024 --rule both",
        "--b1 .95 --b2 .851 --eps 1e-30 --batch 128 --new-batch 1024",
        "--b1 .9999999 --b2 .99999 --eps 1e-15 --steps 2000000000",
        "--b1 .95 --b2 .9025",
        "--b1 .95 --b2 .902500001",
        "--b1 .95 --b2 .902499999",
        "--b1 .9999999999 --b2 .9999999999",
        "--optimizer adafactor --steps 3",
        "--optimizer ademamix --steps 3 --set b3=.99950000001 --set alpha=3 --set eps=1e-12",
    ):
        lines = diagnose(line)[1].splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 34


@pytest.mark.parametrize("page", ["README.md", "docs/guides/is_my_optimizer_stable.md"])
def test_commands_on_pages_have_answers(diagnose, page):
    lines = re.findall(r"^python -m kadam_jax diagnose (.*)", (ROOT / page).read_text(), re.M)
    assert lines
    for line in lines:
        assert diagnose(line)[0] in (0, 1)


def outside(line, **settings):
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "kadam_jax", "diagnose", *line.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment |= settings.pop("env", {})
    return subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, check=False, **settings
    )


def test_a_closed_pipe_changes_nothing_and_says_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    done = outside("--b1 .95 --b2 .85", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_is_reported_in_one_sentence():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = outside("--b1 .9 --b2 .999", stdout=full)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output cannot be written (No space left on device)" in done.stderr


def test_letters_that_the_encoding_lacks_are_escaped():
    done = outside("--optimizer é", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert r"got '\xe9'" in done.stderr
