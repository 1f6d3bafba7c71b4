"""Tests of figures/optimizer/contenders: its rows, its search and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from optax.contrib import scale_by_muon

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.run import Run
from experiments.core.stats import paired_mean
from experiments.figures.optimizer.compass import beyond, closing, search
from experiments.figures.optimizer.contender_table import CONTENDERS, decays
from experiments.figures.optimizer.contenders import FIGURE
from experiments.figures.optimizer.contenders.analysis import analyze, steps_to
from experiments.figures.optimizer.contenders.claims import CLAIMS, USEFUL
from experiments.figures.optimizer.problems import TASKS, problem, train_measured
from experiments.figures.optimizer.protocol import trial
from experiments.training.optimizers import muon_dimensions
from kadam_jax import is_exactly_stable, scale_by_adaptive_normalization, scale_to_rms
from models.cnn import CNNConfig
from tests.figures.contract import CORPUS, NETWORK, SMALL_NETWORK, Contract

LAPTOP = FIGURE.presets["laptop"]
EVENING = FIGURE.presets["evening"]
SMALL = dataclasses.replace(
    FIGURE.presets["smoke"],
    model=dataclasses.replace(NETWORK, dropout=0.0),
    cnn=CNNConfig(width=1 / 64),
    tasks=("text", "images"),
    contenders=("adamw", "kadam_2"),
)
RNG = np.random.default_rng(0)


# Rows


PARAMS = {
    "embedding": jnp.ones((8, 4)),
    "qkv": jnp.ones((4, 3, 2, 2)),
    "kernel": jnp.ones((3, 3, 2, 5)),
    "up": jnp.ones((6, 4)),
    "scale": jnp.ones(4),
}
GRADIENTS = jax.tree.map(lambda p: np.float32(RNG.normal(size=(3, *p.shape))), PARAMS)
AT = {"learning_rate": 0.1, "b1": 0.9, "b2": 0.95, "weight_decay": 0.0, "eps": 1e-8}
MUONS = [name for name in CONTENDERS if "muon" in name]


def last_update(optimizer, gradients=GRADIENTS, params=PARAMS):
    """Return the update of the last gradient."""

    def step(state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return state, updates

    updates = jax.lax.scan(step, optimizer.init(params), gradients)[1]
    return jax.tree.map(lambda leaf: leaf[-1], updates)


def made(name, **at):
    return CONTENDERS[name].optimizer.make({**AT, **at}, lambda _: 0.1)


@pytest.fixture(scope="module")
def updates():
    """The last updates of Muon and its relatives, by name."""
    return jax.jit(lambda: {name: last_update(made(name)) for name in MUONS})()


def test_matrices_are_the_parameters_that_multiply():
    found = {
        name: numbers and numbers.reduction_axis
        for name, numbers in muon_dimensions(PARAMS).items()
    }
    assert found == {
        "embedding": None,
        "qkv": (0,),
        "kernel": (0, 1, 2),
        "up": (0,),
        "scale": None,
    }


@pytest.mark.parametrize("name", MUONS)
def test_muons_relatives_differ_on_matrices_alone(name, updates):
    for key, numbers in muon_dimensions(PARAMS).items():
        same = np.allclose(updates[name][key], updates["muon"][key], rtol=1e-5)
        assert same == (numbers is None or name == "muon"), key
        if numbers is not None:
            rms = np.sqrt(np.mean(updates[name][key] ** 2))
            assert rms == pytest.approx(0.02, rel=0.2)


CHAINS = {
    "adamuon": (
        optax.trace(0.9),
        optax.scale_by_sign(),
        scale_by_muon(beta=0, nesterov=False),
        scale_by_adaptive_normalization(0, 0.95, 1e-8),
    ),
    "normuon": (
        scale_by_muon(beta=0.9, nesterov=False),
        scale_by_adaptive_normalization(0, 0.95, 1e-8, axes=(0,)),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_stages_after_muon_are_the_librarys_chains(name, updates):
    chain = optax.chain(*CHAINS[name], scale_to_rms(0.2), optax.scale(-0.1))
    theirs = jax.jit(lambda: last_update(chain, GRADIENTS["up"], PARAMS["up"]))()
    np.testing.assert_allclose(updates[name]["up"], theirs, rtol=1e-4, atol=1e-7)


def test_a_stage_before_muon_rescales_matrices_first():
    """Without memory, the stage divides each entry by its own modulus: Muon gets signs."""
    signs = jax.tree.map(np.sign, GRADIENTS)
    ours, theirs = jax.jit(
        lambda: (
            last_update(made("muon_before", b1=0.0, b2=0.0)),
            last_update(made("muon", b1=0.0, b2=0.0), signs),
        )
    )()
    np.testing.assert_allclose(ours["up"], theirs["up"], rtol=1e-4, atol=1e-7)


def test_searches_begin_where_updates_are_bounded():
    for name, row in CONTENDERS.items():
        for steps in (-1.0, 0.0, 1.0):
            b1, b2 = decays(row, steps)
            assert min(b1, b2) >= 0
            assert max(b1, b2) < 1
            assert not b2 or is_exactly_stable(b1, b2), name
    assert decays(CONTENDERS["signum"], 1.0)[0] == decays(CONTENDERS["signum"], 1.0)[1]


# Problems and the search


@pytest.fixture
def small_run(tmp_path):
    return Run(CORPUS, None, None)


@pytest.mark.usefixtures("small_network")
def test_the_course_ends_at_the_validation_loss(small_run):
    config = dataclasses.replace(SMALL, tasks=("text",), course_batches=SMALL.eval_batches)
    of = problem(config, "text", small_run)
    found = jax.jit(
        lambda seed: train_measured(
            of, optax.sgd(0.5), seed, config.num_points, lambda _, params: params
        )
    )(3)
    assert found["course"].shape == (config.num_points,)
    np.testing.assert_allclose(found["course"][-1], found["validation"], rtol=1e-6)
    assert (np.diff(found["course"]) < 0).all()
    np.testing.assert_array_equal(found["loss"], found["score"])


@pytest.mark.usefixtures("small_network")
def test_squares_remember_as_many_tokens_in_larger_batches(small_run, monkeypatch):
    seen = {}

    def make(at, schedule):
        seen["b2"] = at["b2"]
        return optax.sgd(0.0)

    member = {"learning_rate": 0.1, "b1": 0.9, "b2": 0.5, "weight_decay": 0.0, "seed": 0}
    of = problem(SMALL, "text_batch", small_run)
    for squares, b2 in ((True, 0.5 ** TASKS["text_batch"].batch), (False, 0.5)):
        row = CONTENDERS["adamw"]._replace(squares=squares)
        row = row._replace(optimizer=row.optimizer._replace(make=make))
        jax.eval_shape(lambda row=row: trial(SMALL, row, of)(member))
        assert seen["b2"] == b2


def landscape(optimum, row, noise=0.0):
    """Return a `train` that counts runs; its losses are a valley with its bottom at `optimum`."""
    rng, drawn = np.random.default_rng(0), {}

    def train(stage, candidates, seeds):
        rates = np.log2(candidates["learning_rate"] / row.rate)
        memories = np.log2((1 - candidates["b2"]) / (1 - row.b2))
        losses = (rates - optimum[0]) ** 2 + (memories - optimum[1]) ** 2
        for place in zip(rates.ravel(), memories.ravel(), strict=True):
            for seed in seeds:
                drawn.setdefault((*place, seed), rng.normal(scale=noise))
        train.runs += losses.size * len(seeds)
        noises = [
            [drawn[rate, memory, seed] for seed in seeds]
            for rate, memory in zip(rates.ravel(), memories.ravel(), strict=True)
        ]
        return {"validation": losses[..., None] + np.reshape(noises, (*losses.shape, -1))}

    train.runs = 0
    return train


SEARCHED = dataclasses.replace(SMALL, num_rates=3, num_memories=3)


@pytest.mark.parametrize(("rounds", "closings"), [(4, 0), (1, 4), (0, 4)])
@pytest.mark.parametrize("optimum", [(0.0, 0.0), (2.0, -1.0), (-3.0, 0.0)])
def test_the_search_finds_an_optimum_beyond_its_grid(optimum, rounds, closings):
    """The valley's bottom is `optimum`; the grid reaches from -1 to 1."""
    config = dataclasses.replace(SEARCHED, num_rounds=rounds, num_closings=closings)
    train = landscape(optimum, CONTENDERS["adamw"])
    found = search(config, CONTENDERS["adamw"], train)
    assert found.places[int(found.tuned.chosen[0])] == optimum
    assert found.at_edge == (False, False)
    assert len(found.places) == len({*found.places}) == config.num_tried
    finalists = config.num_finalists * (config.num_tuning_seeds - 1)
    assert train.runs == config.num_tried + finalists


def test_closing_steps_leave_nearly_no_optimum_at_an_edge():
    """Noise often leaves a compass's best place alone in its row or column."""
    row = CONTENDERS["adamw"]
    optima = np.random.default_rng(1).uniform(-1.5, 1.5, (40, 2))

    def edges(config):
        found = [search(config, row, landscape(at, row, 0.3)) for at in optima]
        return np.mean([its.at_edge for its in found])

    compass = dataclasses.replace(EVENING, num_rounds=2, num_closings=0)
    assert 5 * edges(EVENING) < edges(compass)


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_nothing_is_tried_beyond_no_memory(name):
    row = CONTENDERS[name]
    assert any(decays(row, 2.0))
    assert not any(decays(row, 5.0))
    places = [(0.0, 2.0), (0.0, 5.0), (1.0, 5.0), (-1.0, 5.0)]
    assert set(beyond(row, places, (0.0, 5.0))) == set()
    assert closing(row, places) == [(1.0, 2.0), (-1.0, 2.0), (0.0, 1.0), (2.0, 5.0)]


def test_a_finalist_that_diverges_does_not_hide_the_chosen_one():
    config = dataclasses.replace(
        SMALL, num_rates=3, num_memories=1, num_rounds=0, num_closings=0, num_finalists=2
    )

    calls = []

    def diverging(stage, candidates, seeds):
        calls.append(stage)
        loss = np.log2(candidates["learning_rate"] / CONTENDERS["adamw"].rate) ** 2
        losses = np.repeat(loss[..., None], len(seeds), -1)
        if len(calls) == 1:  # with the first seed all converge
            return {"validation": losses}
        return {"validation": np.where(losses > 0, np.nan, losses)}

    found = search(config, CONTENDERS["adamw"], diverging)
    assert np.isnan(found.tuned.losses).any()
    assert found.picked_validation == 0


# The dataset


def test_gains_are_paired_differences_to_adamw(data):
    gains = data.score.sel(arm="adamw") - data.score.sel(arm="kadam_2")
    for task in data.task.values:
        ends = paired_mean(gains.sel(task=task)).ends
        np.testing.assert_allclose(data.gain.sel(task=task, arm="kadam_2"), ends)
    assert (data.gain.sel(arm="adamw") == 0).all()
    assert data.validation.notnull().all()
    assert data.settings == SMALL.num_tried


def test_adamw_reaches_its_own_target_in_three_quarters():
    data = made_up()
    steps = data.target_steps.sel(arm="adamw", task="text")
    np.testing.assert_allclose(steps, 0.75 * data.steps.sel(task="text")[-1])
    late = steps_to(data.course, data.target - 9, data.steps)
    assert np.isinf(late).all()


def test_evening_has_all_rows_and_the_same_runs_for_each():
    assert set(EVENING.contenders) == set(CONTENDERS)
    assert set(EVENING.tasks) == set(TASKS)
    assert not {*EVENING.tuning_seeds} & {*EVENING.seeds}


# Claims


def made_up(gains=None, speeds=None, spread=0.0, edges=(), diverged=(), validation=None):
    """Make a dataset of the laptop's tasks with all contenders.

    Args:
      gains: By arm, by how much its score beats AdamW's, in multiples of what is useful.
      speeds: By arm, how much faster than AdamW its loss falls.
      spread: Standard deviation of the noise of every seed, in the same multiples.
      edges: Arms whose learning rates are at an edge.
      diverged: Arms with a diverged seed.
      validation: By arm, how much lower its validation loss is than follows from its gain.
    """
    gains, speeds, validation = gains or {}, speeds or {}, validation or {}
    arms, tasks = list(CONTENDERS), list(LAPTOP.tasks)
    rng = np.random.default_rng(1)
    shape = len(arms), len(tasks), LAPTOP.num_seeds

    def noise(num_seeds):
        sizes = np.broadcast_to(np.linspace(-spread, spread, num_seeds), (*shape[:2], num_seeds))
        return rng.permuted(sizes, axis=2)

    def better(num_seeds):
        found = np.array([gains.get(arm, 0.0) for arm in arms])[:, None, None] + noise(num_seeds)
        found[np.isin(arms, diverged), :, 0] = np.nan
        return found

    fresh, shared = better(LAPTOP.num_seeds), better(LAPTOP.num_shared_seeds)
    useful = np.array([USEFUL[task] for task in tasks])[:, None]
    share = np.arange(1, LAPTOP.num_points + 1) / LAPTOP.num_points
    speed = np.array([speeds.get(arm, 1.0) for arm in arms])[:, None, None] + 0.01 * noise(
        LAPTOP.num_seeds
    )
    picked = 2 - 0.01 * np.array([gains.get(arm, 0) + validation.get(arm, 0) for arm in arms])
    by_task = ("arm", "task")
    data = xr.Dataset(
        {
            "validation": ((*by_task, "candidate"), np.full((*shape[:2], LAPTOP.num_tried), 2.0)),
            "learning_rate": ((*by_task, "candidate"), np.full((*shape[:2], LAPTOP.num_tried), 1)),
            "picked": (by_task, np.zeros(shape[:2], int)),
            "picked_validation": (by_task, np.repeat(picked[:, None], len(tasks), 1)),
            "at_edge": (
                (*by_task, "axis"),
                np.isin(arms, edges)[:, None, None] & np.ones((len(tasks), 2), bool),
            ),
            "loss": ((*by_task, "seed"), 2 - 0.01 * fresh),
            "score": ((*by_task, "seed"), 10 - useful * fresh),
            "course": (
                (*by_task, "seed", "point"),
                3 - (speed * np.where(np.isnan(fresh), np.nan, 1.0))[..., None] * share,
            ),
            "shared_loss": ((*by_task, "shared_seed"), 2 - 0.01 * shared),
            "shared_validation": ("arm", picked),
        },
        {
            "arm": arms,
            "task": tasks,
            "axis": ["rate", "memory"],
            "seed": np.array(LAPTOP.seeds),
            "shared_seed": np.array(LAPTOP.seeds[: LAPTOP.num_shared_seeds]),
            "chance": ("task", [5.0, 2.0]),
            "label": ("task", tasks),
            "steps": (("task", "point"), 400 * np.array([share] * len(tasks))),
        },
    )
    for name in data.variables:
        data[name].attrs = {"long_name": name, "units": "1"}
    return analyze(data).assign_attrs(config=to_json(LAPTOP))


KADAM_BETTER, KADAM_WORSE = (
    {"kadam_2": 2.0},
    dict.fromkeys(("kadam_2", "kadam_3", "kadam_2_scaled", "kadam_3_scaled"), -1.0),
)
NOISE = {"spread": 100.0}
CASES = {
    **{
        f"{name}-on-{task}": cases
        for task in ("text", "images")
        for name, cases in {
            "searched-kadam-beats-adamw": (
                {"gains": KADAM_BETTER},
                {"gains": {"kadam_2": 0.5}},
                NOISE,
            ),
            "searched-kadam-saves-steps": (
                {"gains": KADAM_BETTER, "speeds": {"kadam_2": 1.2}},
                {"gains": KADAM_BETTER},
                {"speeds": {"kadam_2": 1.05}, "gains": KADAM_BETTER, "spread": 30.0},
            ),
            "a-stage-before-muon-helps": (
                {"gains": {"muon_before": 0.1}},
                {"gains": {"muon": 0.1}},
                NOISE,
            ),
            "a-stage-after-muon-helps": (
                {"gains": {"normuon": 0.1}},
                {"gains": {"muon": 0.1}},
                NOISE,
            ),
            "a-second-stage-around-muon-helps": (
                {"gains": {"muon_both": 2.0}},
                {"gains": {"muon_both": 2.0, "muon_before": 1.5}},
                NOISE,
            ),
        }.items()
    },
    "searched-kadam-beats-adamw-on-every-task": (
        {"gains": KADAM_BETTER},
        {"gains": KADAM_WORSE},
        NOISE,
    ),
    "a-stage-before-muon-helps-on-every-task": (
        {"gains": {"muon_before": 0.1}},
        {"gains": {"muon": 0.1}},
        NOISE,
    ),
    "one-kadam-for-all-tasks-beats-one-adamw": (
        {"gains": KADAM_BETTER},
        {"gains": KADAM_WORSE},
        NOISE,
    ),
    "every-searched-optimum-is-interior": ({}, {"edges": ["lion"]}),
}
ROWS = {claim.id: claim for claim in CLAIMS}


def judged(name, **given):
    return judge(ROWS[name], made_up(**given), FIGURE.minimum)


@pytest.mark.parametrize(
    ("name", "rival", "arm", "neither"),
    [
        ("searched-kadam-beats-adamw-on-text", "adamw", "kadam_3", "muon"),
        ("searched-kadam-saves-steps-on-images", "adamw", "kadam_3", "lion"),
        ("a-stage-before-muon-helps-on-every-task", "muon", "muon_before", "adamw"),
    ],
)
def test_an_edge_opens_the_interval(name, rival, arm, neither):
    better, worse, _ = CASES[name]
    assert judged(name, **better, edges=[rival]).verdict == INCONCLUSIVE
    assert judged(name, **better, edges=[arm, neither]).verdict == SUPPORTED
    assert judged(name, **worse, edges=[arm]).verdict == INCONCLUSIVE
    assert judged(name, **worse, edges=[rival, neither]).verdict == NOT_SUPPORTED


def test_validation_chooses_the_arm_that_counts():
    given = {"gains": {"kadam_2": 3.0, "kadam_3": -3.0}, "validation": {"kadam_3": 9.0}}
    assert judged("searched-kadam-beats-adamw-on-text", **given).verdict == NOT_SUPPORTED


def test_diverged_seeds_are_not_evidence():
    for name, (better, *_) in CASES.items():
        if "interior" not in name:
            arm = next(iter(better["gains"]))
            assert judged(name, **better, diverged=[arm]).verdict == INCONCLUSIVE, name


def test_what_was_not_trained_is_not_judged():
    better = made_up(**CASES["a-stage-before-muon-helps-on-text"][0])
    few = better.sel(arm=["adamw", "muon_before"], task=["images"])
    for claim in CLAIMS:
        if "before" in claim.id or "text" in claim.id:
            assert judge(claim, few, FIGURE.minimum).verdict == INCONCLUSIVE


CONTRACT = Contract(
    FIGURE,
    SMALL,
    panels={"": 6, "course": 2, "search": 2},
    comparison=True,
    strict=(),
    refused=[
        {"tasks": ()},
        {"tasks": ("text", "text")},
        {"tasks": ("speech",)},
        {"contenders": ("muon",)},
        {"contenders": ("adamw", "adam")},
        {"learning_rate": 0.1},
        {"num_rates": 1},
        {"num_memories": 0},
        {"num_rounds": -1},
        {"num_closings": -1},
        {"num_finalists": 0},
        ({"num_finalists": 11}, "num_finalists must be at most 10"),
        {"num_tuning_seeds": 1},
        {"num_seeds": 1},
        {"num_shared_seeds": 1},
        ({"num_shared_seeds": 3}, "num_shared_seeds must be at most num_seeds=2"),
        {"num_points": 3},
        {"num_points": 16},
        {"course_batches": 0},
        {"eval_batches": 0},
        {"image_batch": 0},
        {"warmup_steps": 8},
        {"final_rate": 2.0},
        {"eps": 1e-8},
    ],
    made_up=made_up,
    cases=CASES,
    patches=SMALL_NETWORK,
)
