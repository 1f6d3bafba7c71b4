"""The stages of the search for 2-Adam's decays: many members with one seed, few with several.

AdamW is searched in the same way and with as many members. Validation losses are compared; the test
split is for seeds that did not take part in any choice. In all functions, `config` is the figure's
configuration, and `trains` has what `trainers` returns for the task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments.core.run import Run
from experiments.core.stats import at_end
from experiments.core.store import coordinates, named, over
from experiments.figures.optimizer.decay_search.box import (
    AXES,
    COORDINATES,
    KADAM,
    around,
    at_edge,
    sobol,
)
from experiments.training.optimizers import ADAMW, strategy_decays
from experiments.training.trials import Trial, optimizer_trial
from experiments.training.tuning import Candidates, Train, lowest, ranked, trainer, tune
from kadam_jax import STRATEGIES

SEARCHED = "searched"
"""The arm that the search found; the others are AdamW and the paper's strategies."""
ARMS = (ADAMW, SEARCHED, *STRATEGIES)

FEW_RATES = 2
"""Number of learning rates of the same decays among which all tuning seeds choose."""

ON_TEXT, ON_IMAGES = "nat/token", "nat/image"
COORDINATE = (COORDINATES, "decay of a stage, or learning rate")
OPTIMIZER = xr.DataArray(
    list(AXES),
    dims="optimizer",
    name="optimizer",
    attrs={"long_name": "optimizer whose decays are searched", "units": "1"},
)

Trains = Mapping[str, Train]
"""The functions that train each optimizer on one task."""


def trainers(
    config: Any, run: Run, task: str, trial: Trial, num_steps: int, warmup_steps: int
) -> Trains:
    """Return functions that train one task's members, with one program for each optimizer.

    Args:
      config: The figure's configuration.
      run: The figure's run.
      task: Becomes part of the sweeps' names.
      trial: Trains a member.
      num_steps: Steps of every member.
      warmup_steps: Warm-up steps, part of num_steps.
    """

    def one(optimizer):
        schedule = num_steps, warmup_steps, config.final_rate
        fn = optimizer_trial(optimizer, trial, *schedule, k=2, weight_decay=config.weight_decay)
        return trainer(run, f"{task}_{optimizer}", fn, config.chunk_size)

    return {name: one(name.removesuffix("_2")) for name in AXES}


def candidates(settings: np.ndarray) -> Candidates:
    """Return columns (...) of settings (..., num_coordinates)."""
    columns = dict(zip(COORDINATES, np.moveaxis(settings, -1, 0), strict=True))
    columns["learning_rate"] = columns.pop("rate")
    return columns | {"b1": columns["b1_1"], "b2": columns["b2_1"]}  # the names for a single stage


def stages(config: Any, first: Trains, second: Trains) -> xr.Dataset:
    """Search both optimizers, tune the strategies, compare all, and confirm what was found.

    Args:
      config: The figure's configuration.
      first: Trains on the task that is searched on.
      second: Trains on the other task.

    Returns:
      The results of all stages, in one labeled dataset.
    """
    searched = xr.concat([search(config, first[name], AXES[name]) for name in AXES], OPTIMIZER)
    strategies = tune_strategies(config, first)
    arms = compare(config, first, searched, strategies)
    return xr.merge([searched, strategies, arms, confirm(config, second, searched)])


def search(config: Any, train: Train, axes: Sequence[str]) -> xr.Dataset:
    """Search one optimizer's decays and learning rate, along its axes.

    The search takes a Sobol sequence in the whole box and another one around the best of the first,
    both with one seed; then the best of both with more seeds, whose mean decides.

    Returns:
      All members over `member`, the best over `finalist`, and `chosen`, the index of the best.
    """

    def settings_of(cube):
        return with_all_coordinates(config.box.settings(cube, axes), axes)

    def validate(stage, cube):
        tried = candidates(settings_of(cube))
        return train(stage, tried, config.tuning_seeds[:1])["validation"][:, 0]

    cube = sobol(config.num_searched, len(axes), config.sobol_seed)
    validation = validate("searched", cube)
    smaller = sobol(config.num_refined, len(axes), config.sobol_seed + 1)
    centers = cube[ranked(validation)[: config.num_finalists]]
    refined = around(centers, smaller, config.refined_width)
    validation = np.append(validation, validate("refined", refined))
    cube = np.concatenate([cube, refined])

    settings = settings_of(cube)
    first = {"validation": validation[None, :, None]}
    tried = candidates(settings[None])
    tuned = tune(wide(train, "searched"), tried, config.tuning_seeds, config.num_finalists, first)
    (chosen,) = tuned.chosen
    edges = dict(zip(axes, at_edge(cube[chosen][None], axes)[0], strict=True))
    return xr.Dataset(
        {
            "setting": named((("member", "coordinate"), settings), "value of a member"),
            "validation": named(
                ("member", validation), "validation loss, first tuning seed", ON_TEXT
            ),
            "finalist_member": named(
                ("finalist", tuned.places[0]), "index of the finalist among the members"
            ),
            "finalist_validation": named(
                (("finalist", "tuning_seed"), tuned.losses[0].astype(float)),
                "validation loss of a finalist",
                ON_TEXT,
            ),
            "chosen": named(chosen, "index of the chosen member"),
            "coordinate_at_edge": named(
                ("coordinate", [edges.get(c, False) for c in COORDINATES]),
                "whether the chosen value is in the outer tenth of its range",
            ),
        },
        coordinates(
            coordinate=COORDINATE,
            tuning_seed=(config.tuning_seeds, "seed that is used for choosing"),
        ),
    )


def with_all_coordinates(settings: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Expand (num_settings, num_axes) to (num_settings, 5), `COORDINATES`, NaN without an axis.

    >>> with_all_coordinates(np.array([[0.9, 0.99, 1e-3]]), AXES["adamw"]).tolist()
    [[0.9, 0.99, nan, nan, 0.001]]
    """
    found = np.full((len(settings), len(COORDINATES)), np.nan)
    found[:, [COORDINATES.index(axis) for axis in axes]] = settings
    return found


def wide(train: Train, of: str) -> Train:
    """Return `train` with other names for its sweeps, and in float64, for means over seeds."""

    def wide_train(stage, candidates, seeds):
        found = train(f"{of}_{stage}", candidates, seeds)
        return {key: x.astype(float) for key, x in found.items()}

    return wide_train


def tune_strategies(config: Any, trains: Trains) -> xr.Dataset:
    """Tune the learning rate of 2-Adam with the decays of each of the paper's strategies.

    Returns:
      The sweep over `strategy` and `strategy_rate`, and what was chosen from it over `strategy`.
    """
    rates = np.array(config.strategy_rates) * config.learning_rate
    decays = [strategy_decays(2, strategy) for strategy in STRATEGIES]
    settings = np.array([[[*of.values(), *of.values(), rate] for rate in rates] for of in decays])
    tuned = tune(
        wide(trains[KADAM], "strategies"), candidates(settings), config.tuning_seeds, FEW_RATES
    )
    means = tuned.losses.mean(-1)
    chosen = {
        "strategy_mean": (
            np.where(np.isfinite(means), means, np.inf).min(1),
            "validation loss of a strategy as tuned, mean over tuning seeds",
            ON_TEXT,
        ),
        "strategy_at_edge": (
            at_end(tuned.chosen, len(rates)),
            "whether the strategy's learning rate is the lowest or the highest",
        ),
    }
    return xr.Dataset(
        {
            "strategy_validation": named(
                (("strategy", "strategy_rate"), tuned.first["validation"][..., 0]),
                "validation loss of a strategy, first tuning seed",
                ON_TEXT,
            ),
            "strategy_setting": named(
                (("strategy", "coordinate"), settings[np.arange(len(settings)), tuned.chosen]),
                "value of a strategy as tuned",
            ),
            **over("strategy", chosen),
        },
        coordinates(
            strategy=(list(STRATEGIES), "the paper's strategy"),
            strategy_rate=(rates, "learning rate of the strategies' sweep"),
            coordinate=COORDINATE,
        ),
    )


def compare(
    config: Any, trains: Trains, searched: xr.Dataset, strategies: xr.Dataset
) -> xr.Dataset:
    """Train the arms that are compared, as they were chosen, with fresh seeds.

    The strategies compared are inverse exp and the best one on the validation split.

    Returns:
      The setting of every arm, and its loss on the test split over `arm` and `seed`, NaN for arms
      that are not compared.
    """
    best = searched.isel(member=searched.chosen)
    settings = np.concatenate([best.setting, strategies.strategy_setting])
    best_strategy = strategies.strategy.values[lowest(strategies.strategy_mean)]
    compared = {SEARCHED, "inverse_exp", best_strategy}
    test = np.full((len(ARMS), config.num_seeds), np.nan)
    for name, arms in ((ADAMW, {ADAMW}), (KADAM, compared)):
        ours = np.isin(ARMS, list(arms))
        test[ours] = trains[name]("fresh", candidates(settings[ours]), config.seeds)["test"]
    means = searched.finalist_validation.mean("tuning_seed", skipna=False)
    means = means.where(np.isfinite(means)).min("finalist")
    edges = searched.coordinate_at_edge.sel(coordinate="rate")
    return xr.Dataset(
        {
            "arm_setting": named((("arm", "coordinate"), settings), "value of an arm as tuned"),
            "mean_validation": named(
                ("arm", np.append(means, strategies.strategy_mean)),
                "validation loss as tuned, mean over tuning seeds",
                ON_TEXT,
            ),
            "rate_at_edge": named(
                ("arm", np.append(edges, strategies.strategy_at_edge)),
                "whether the learning rate chosen is near an end of its range",
            ),
            "test": named(
                (("arm", "seed"), test),
                "test loss, fresh seeds; NaN for strategies that are not compared",
                ON_TEXT,
            ),
        },
        coordinates(
            arm=(ARMS, "tuned AdamW, the 2-Adam found, 2-Adam by strategy"),
            coordinate=COORDINATE,
            seed=(config.seeds, "fresh seed"),
        ),
    )


def confirm(config: Any, trains: Trains, searched: xr.Dataset) -> xr.Dataset:
    """Train both optimizers on the second task, keeping decays and tuning the learning rate again.

    Returns:
      The sweep over the learning rate, the chosen rate, and the fresh seeds' losses on the test
      split, over `optimizer`.
    """
    rates = np.array(config.second_rates) * config.learning_rate
    parts = []
    for name in AXES:
        one = searched.sel(optimizer=name)
        settings = np.tile(one.setting.isel(member=one.chosen), (len(rates), 1))
        settings[:, COORDINATES.index("rate")] = rates
        tried = candidates(settings[None])
        tuned = tune(wide(trains[name], "rates"), tried, config.tuning_seeds, FEW_RATES)
        (chosen,) = tuned.chosen
        found = {
            "second_validation": named(
                ("second_rate", tuned.first["validation"][0, :, 0]),
                "validation loss on the second task, first tuning seed",
                ON_IMAGES,
            ),
            "second_chosen_rate": named(rates[chosen], "learning rate chosen on the second task"),
            "second_rate_at_edge": named(
                at_end(chosen, len(rates)),
                "whether the second task's learning rate is the lowest or the highest",
            ),
            "second_test": named(
                ("seed", trains[name]("fresh", tuned.picked, config.seeds)["test"][0]),
                "test loss on the second task, fresh seeds",
                ON_IMAGES,
            ),
        }
        coords = coordinates(
            second_rate=(rates, "learning rate of the second task's sweep"),
            seed=(config.seeds, "fresh seed"),
        )
        parts.append(xr.Dataset(found, coords))
    return xr.concat(parts, OPTIMIZER)
