"""figures/stability/max_updates.py, the training figures and their claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import figures
from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import shortfalls, to_json
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import byte_corpus
from experiments.figures.stability import discrete_boundary, max_update
from experiments.figures.stability.max_updates import (
    fitted_relation,
    growth_slopes,
    largest_ratio,
    stored_rms,
    theory,
)
from kadam_jax.stability import exact_max_update_bound
from models.nanogpt import GPTConfig
from tests.figures.claim_cases import CLAIMS

TINY = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=8, dropout=0.1)
SMALL = {"model": TINY, "batch": 2, "num_steps": 24, "num_seeds": 2}
CURVE = max_update.run.Config(
    **SMALL, contrast_steps=40, num_curve=10, num_points=6, slope_first=10, slope_last=20
)
BOUNDARY = discrete_boundary.run.Config(
    **SMALL, points=((0.25, 0.1), (0.35, 0.1), (0.9, 0.999)), worst_case_steps=16
)
FIGURES = {"max_update": (max_update, CURVE), "discrete_boundary": (discrete_boundary, BOUNDARY)}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Each figure's dataset from real, tiny runs, with the attributes that plotting needs."""
    corpus = byte_corpus("text", b"the quick brown fox jumps over the lazy dog. " * 40)
    found = {}
    for name, (module, config) in FIGURES.items():
        run = Run(corpus, None, ChunkStore(tmp_path_factory.mktemp(name)))
        found[name] = module.compute(config, run)
        found[name].attrs["config"] = to_json(config)
    return found


# The slope of ln‖u‖


@pytest.mark.parametrize(("b1", "b2"), [(0.995, 0.954), (0.98, 0.9625), (0.9, 0.999)])
def test_the_slope_of_a_dead_gradient_is_the_exact_rate(b1, b2):
    optimizer = stored_rms(b1, b2, 0.0)
    grads = jnp.zeros(401).at[0].set(1.0)

    def step(state, grad):
        update, state = optimizer.update(grad, state)
        return state, update

    _, updates = jax.lax.scan(step, optimizer.init(grads[0]), grads)
    slope = growth_slopes(np.asarray(updates)[None], np.array([b1]), np.array([b2]), (200, 400))
    assert slope == pytest.approx(np.log(b1) - np.log(b2) / 2, abs=1e-6)


def test_slopes_add_the_rate_and_ignore_the_scale():
    random = np.random.default_rng(0)
    updates = np.exp(random.normal(size=(3, 2, 60)))
    b1, b2 = np.array([0.9, 0.95, 0.99]), np.array([0.99, 0.95, 0.95])
    slopes = growth_slopes(updates, b1, b2, (20, 50))
    assert slopes.shape == (3, 2)
    np.testing.assert_allclose(growth_slopes(7 * updates, b1, b2, (20, 50)), slopes, atol=1e-12)
    faster = updates * np.exp(0.01 * np.arange(60))
    np.testing.assert_allclose(growth_slopes(faster, b1, b2, (20, 50)), slopes + 0.01, rtol=1e-9)
    outside = updates.copy()
    outside[..., :20] = outside[..., 51:] = 1e9
    np.testing.assert_array_equal(growth_slopes(outside, b1, b2, (20, 50)), slopes)


def test_a_run_shorter_than_the_window_has_no_slope():
    updates, b = np.ones((1, 300)), np.array([0.5])
    assert np.isnan(growth_slopes(updates, b, b, (200, 400))).all()
    assert np.isfinite(growth_slopes(updates, b, b, (200, 300))).all()


# The fitted relation


def noisy_slopes(coefficient, intercept, noise, num_points=9, num_seeds=9, seed=0):
    rates = np.linspace(0.001, 0.022, num_points)
    errors = np.random.default_rng(seed).normal(scale=noise, size=(num_points, num_seeds))
    return rates, coefficient * rates[:, None] + intercept + errors


def test_an_exact_line_has_an_interval_of_zero_width():
    fit = fitted_relation(*noisy_slopes(0.97, 3e-4, 0.0))
    np.testing.assert_allclose(fit, [[0.97] * 3, [3e-4] * 3], rtol=1e-9)


def test_intervals_cover_the_truth_and_narrow_with_less_noise():
    covered = [
        low <= 0.97 <= high
        for seed in range(40)
        for _, low, high in [fitted_relation(*noisy_slopes(0.97, 0.0, 2e-3, seed=seed))[0]]
    ]
    assert np.mean(covered) >= 0.8
    widths = [
        np.ptp(fitted_relation(*noisy_slopes(0.97, 0.0, noise))[0, 1:]) for noise in (2e-3, 2e-4)
    ]
    assert widths[1] < widths[0] / 5


def test_too_few_points_give_no_line():
    assert np.isnan(fitted_relation(np.array([0.1]), np.ones((1, 3)))).all()
    assert np.isnan(fitted_relation(np.array([0.1, 0.1]), np.ones((2, 3)))).all()


# Bounds


def test_the_bound_reaches_itself_and_infinities_break_it():
    log_bound = theory(np.array([0.99]), np.array([0.95]), 50)["log_exact_bound"]
    updates = np.exp(log_bound)[:, None]
    np.testing.assert_allclose(largest_ratio(updates, log_bound), 1, rtol=1e-12)
    np.testing.assert_allclose(largest_ratio(0.5 * updates, log_bound), 0.5, rtol=1e-12)
    for bad in (np.nan, np.inf):
        updates[0, 0, 7] = bad
        assert np.isinf(largest_ratio(updates, log_bound))


def test_worst_cases_of_every_length_attain_the_exact_bound(x64):
    b1, b2 = np.array([0.25, 0.35, 0.9, 0.994]), np.array([0.1, 0.1, 0.999, 0.955])
    worst = discrete_boundary.run.worst_case_updates(b1, b2, 40)
    exact = exact_max_update_bound(np.arange(40)[None], b1[:, None], b2[:, None])
    np.testing.assert_allclose(worst, exact, rtol=1e-12)


def test_worst_cases_that_overflow_are_refused():
    with pytest.raises(ConfigError, match=r"worst_case_steps=1000 .* must be at most"):
        discrete_boundary.run.worst_case_updates(np.array([0.35]), np.array([0.1]), 1000)


# Datasets of tiny, real runs


@pytest.mark.parametrize("name", FIGURES)
def test_everything_in_a_dataset_is_labeled(datasets, name):
    for variable in datasets[name].variables.values():
        assert {"long_name", "units"} <= variable.attrs.keys()
        assert variable.attrs["long_name"]
    assert {"point", "seed", "step"} <= set(datasets[name].max_update.dims)


@pytest.mark.parametrize("name", FIGURES)
def test_members_differ_by_seed_and_respect_the_exact_bound(datasets, name):
    data = datasets[name]
    np.testing.assert_allclose(data.max_update.isel(step=0), 1, rtol=1e-6)
    assert (data.loss.isel(seed=0) != data.loss.isel(seed=1)).all()
    assert data.exact_ratio.max() < 1 + 1e-5
    assert ((data.dead_share >= 0) & (data.dead_share <= 1)).all()
    for point in range(1, data.sizes["point"]):
        assert (data.loss[point, :, -1] != data.loss[0, :, -1]).all()
        np.testing.assert_allclose(data.loss[point, :, 0], data.loss[0, :, 0], rtol=1e-6)


def test_contrasts_begin_like_their_counterparts(datasets):
    data = datasets["max_update"]
    assert data.contrast.values.tolist() == [3, 5]
    ours = data.contrast_stored
    for name in ("contrast_eps", "contrast_float32"):
        np.testing.assert_allclose(data[name][..., :8], ours[..., :8], rtol=1e-2)


def test_members_of_one_program_may_differ_in_length(datasets):
    data = datasets["max_update"]
    assert data.sizes["step"] < data.sizes["contrast_step"]
    assert data.contrast_stored.notnull().all()
    shorter = data.max_update[data.contrast]
    longer = data.contrast_stored[:, : CURVE.num_seeds, : CURVE.num_steps]
    np.testing.assert_array_equal(longer, shorter)


def test_points_are_the_usual_one_and_the_end_of_the_curve():
    (b1, b2), (curve_b1, curve_b2) = CURVE.points, CURVE.curve
    assert (b1[0], b2[0]) == (np.float32(0.9), np.float32(0.999))
    np.testing.assert_array_equal(b1[1:], curve_b1[-5:])
    np.testing.assert_array_equal(b2[1:], curve_b2[-5:])
    C = theory(b1, b2, 1)["C"]
    assert C.min() < 0 < C.max()


def test_boundary_points_are_sorted_by_the_two_theories(datasets):
    data = datasets["discrete_boundary"]
    assert data.theories.values.tolist() == ["theories disagree", "both unstable", "both stable"]


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_presets_cover_both_sides(preset):
    config = max_update.FIGURE.presets[preset]
    C = theory(*config.points, 1)["C"]
    assert min((C > 0).sum(), (C < 0).sum()) >= len(C) / 4
    points = discrete_boundary.FIGURE.presets[preset].points
    b1, b2 = np.array(points).T
    disagree = (theory(b1, b2, 1)["C"] < 0) & (b1**2 < b2)
    assert (0.25, 0.1) in points
    assert disagree.sum() >= 7


@pytest.mark.parametrize("name", FIGURES)
def test_only_smoke_is_below_the_minimum(name):
    figure = figures.discover()[name]
    assert figure is FIGURES[name][0].FIGURE
    short = {
        preset: shortfalls(config, figure.minimum) for preset, config in figure.presets.items()
    }
    assert short["smoke"]
    assert not short["laptop"]
    assert not short["paper"]


@pytest.mark.parametrize(
    "bad",
    [
        {"num_points": 1},
        {"num_points": 11},
        {"slope_first": 19},
        {"contrast_points": ()},
        {"contrast_points": (6,)},
    ],
)
def test_an_invalid_configuration_is_refused(bad):
    (name,) = bad
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(CURVE, **bad)
    with pytest.raises(ConfigError, match="points must be"):
        dataclasses.replace(BOUNDARY, points=())
    with pytest.raises(ConfigError, match="worst_case_steps"):
        dataclasses.replace(BOUNDARY, worst_case_steps=1)


# Plots


@pytest.mark.parametrize("name", FIGURES)
def test_plots_need_only_the_dataset_and_label_their_axes(datasets, name, tmp_path):
    for suffix, canvas in FIGURES[name][0].FIGURE.plot(datasets[name]).items():
        drawn = [panel for panel in canvas.axes if panel.axison and panel.lines]
        assert drawn
        for panel in drawn:
            assert panel.get_xlabel()
            assert panel.get_ylabel()
            assert panel.get_title(loc="left")
        path = tmp_path / f"{name}{suffix}.png"
        canvas.savefig(path)
        assert path.stat().st_size > 10_000


# Claims


LAPTOP = dataclasses.replace(
    max_update.FIGURE.presets["laptop"], num_seeds=9, contrast_seeds=5, contrast_steps=1051
)


def curve_data(rate="exact", by=1.0, scale=1.0, spread=0.0, revived=False, jump=True):
    """Make the dataset that would result if ‖u_n‖ were constant, or e^{rate·n} where C < 0.

    Args:
      rate: Of `theory`, "exact" or "half_C".
      by: Multiplies the rate.
      scale: Multiplies the updates.
      spread: Half the range of the seeds' rates, relative.
      revived: Whether growth ends at n = 100.
      jump: Whether the float32 contrast jumps, and growth ends with the larger ε.
    """
    b1, b2 = LAPTOP.points
    at = theory(b1, b2, LAPTOP.num_steps)
    n = np.arange(LAPTOP.num_steps)
    predicted = {"exact": at["exact_rate"], "half_C": -at["C"] / 2}[rate]
    seeds = by * (1 + np.linspace(-spread, spread, LAPTOP.num_seeds))
    log_growth = (
        predicted.clip(0)[:, None, None] * seeds[:, None] * np.minimum(n, 100 if revived else n)
    )
    correction = np.log1p(-(b2[:, None] ** (n + 1))) / 2 - np.log1p(-(b1[:, None] ** (n + 1)))
    updates = scale * np.exp(log_growth + (correction - correction[:, :1])[:, None])
    few = updates[LAPTOP.contrast][:, : LAPTOP.contrast_seeds]
    ones = np.ones_like(updates)
    data = max_update.run.analyze(
        LAPTOP,
        {"max_update": updates, "dead_share": ones, "loss": ones},
        stored=few,
        larger_eps=few * np.exp(-0.03 * n) if jump else few,
        float32=few * np.where(n > 900, 1e12, 1) if jump else few,
    )
    data.attrs["config"] = to_json(LAPTOP)
    return data


def boundary_data(exceeds=0.9, grows_by=0.0, misses=0.0, worst_growth=(1.0, 5.0, 1.0)):
    """Make the other figure's dataset at three points, replacing what its claims read."""
    b2, b1 = np.array([(0.1, 0.25), (0.1, 0.35), (0.999, 0.9)]).T
    at = theory(b1, b2, 1)
    seeds = np.ones((3, 5))
    point, member = ("point",), ("point", "seed")
    data = xr.Dataset(
        {
            "exact_ratio": (member, exceeds * seeds),
            "exact_rate": (point, at["exact_rate"]),
            "slope": (member, grows_by * seeds * np.linspace(0.99, 1.01, 5)),
            "worst_case": (("point", "worst_step"), np.ones((3, 256))),
            "worst_error": (point, np.full(3, misses)),
            "worst_growth": (point, np.array(worst_growth)),
        },
        {
            "C": (point, at["C"]),
            "theories": (point, ["theories disagree", "both unstable", "both stable"]),
            "point": np.arange(3),
        },
    )
    data.attrs["config"] = to_json(discrete_boundary.FIGURE.presets["laptop"])
    return data


# Data that support a claim, refute it and, where seeds give an interval, do neither.
CASES = {
    "updates-within-exact-bound": ({}, {"scale": 1.1}),
    "updates-within-theorem-1": ({}, {"scale": 10}),
    "bounded-in-b-plus": ({}, {"scale": 1.5}),
    "grows-in-b-minus": ({}, {"revived": True}),
    "early-slope-is-exact-rate": (
        {"spread": 0.05},
        {"by": 0.85},
        {"rate": "half_C", "by": 0.875},  # 0.903 of the exact rate at one end, 0.899 at the other
    ),
    "slope-proportional-to-half-c": (
        {"rate": "half_C", "spread": 0.02},
        {"rate": "half_C", "by": 1.3},
        {"by": 0.9, "spread": 0.05},
    ),
    "slope-proportional-to-exact-rate": (
        {"spread": 0.02},
        {"by": 0.85},
        {"by": 0.9, "spread": 0.05},
    ),
    "late-slope-is-half-c": (
        {"rate": "half_C"},
        {"rate": "exact"},
        {"rate": "half_C", "spread": 0.05},
    ),
    "growth-starts-at-the-boundary": ({"spread": 0.05}, {"revived": True}, {"spread": 0.5}),
    "larger-eps-stops-growth": ({}, {"jump": False}),
    "float32-v-jumps": ({}, {"jump": False}),
    "exact-bound-holds-between-the-boundaries": ({}, {"exceeds": 1.001}),
    "growth-between-the-boundaries": ({"grows_by": 1.5}, {}, {"grows_by": 1.35}),
    "worst-case-attains-exact-bound": ({}, {"misses": 1e-5}),
    "worst-case-grows-beyond-the-exact-boundary-alone": (
        {},
        {"worst_growth": (1.5, 5.0, 1.0)},
    ),
}
TRAINING_CLAIMS = {claim.id: claim for claim in CLAIMS if claim.figure in FIGURES}
VERDICTS = [
    (name, given, verdict)
    for name, cases in CASES.items()
    for given, verdict in zip(cases, (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE), strict=False)
]


def judgement_of(name, given, **settings):
    claim = TRAINING_CLAIMS[name]
    figure = FIGURES[claim.figure][0].FIGURE
    data = {"max_update": curve_data, "discrete_boundary": boundary_data}[claim.figure](**given)
    config = dataclasses.replace(figure.presets["laptop"], **settings)
    data.attrs["config"] = to_json(config)
    return judge(claim, data, figure.minimum)


def test_every_claim_has_cases():
    assert CASES.keys() == TRAINING_CLAIMS.keys()


@pytest.mark.parametrize(("name", "given", "verdict"), VERDICTS)
def test_a_claim_follows_the_data(name, given, verdict):
    judged = judgement_of(name, given)
    assert judged.verdict == verdict, judged.estimate


@pytest.mark.parametrize("name", CASES)
def test_no_claim_is_decided_at_smoke_scale(name):
    for given in CASES[name]:
        judged = judgement_of(name, given, num_seeds=4)
        assert judged.verdict == INCONCLUSIVE
        assert "num_seeds=4 < 5" in judged.remark
