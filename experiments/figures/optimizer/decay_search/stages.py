"""The stages of the search for 2-Adam's decays: many members with one seed, few with several.

AdamW is searched in the same way and with as many members. What is compared is validation loss; the
test split is for seeds that have chosen nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments.core.run import Run
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
from experiments.training.tuning import choose_by_halving, lowest, lowest_few
from kadam_jax import STRATEGIES, grid, points

SEARCHED = "searched"
"""The arm of what the search found; the others are AdamW and the paper's strategies."""
ARMS = (ADAMW, SEARCHED, *STRATEGIES)

FEW_RATES = 2
"""Of each decays that have their learning rate tuned: what all tuning seeds choose of."""

Train = Callable[[str, str, np.ndarray, Sequence[int]], Mapping[str, np.ndarray]]
"""`train(stage, optimizer, settings, seeds)`: `validation` and `test`, (num_settings, num_seeds),
of settings (num_settings, num_axes) of `AXES`."""


def trainer(
    config: Any, run: Run, task: str, trial: Trial, num_steps: int, warmup_steps: int
) -> Train:
    """What trains one task's members, in one program for each optimizer.

    Args:
      config: With `weight_decay`, `final_rate` and `chunk_size`.
      run: Of the figure.
      task: Part of the sweeps' names.
      trial: Trains a member.
      num_steps: Of every member.
      warmup_steps: Of them.

    Returns:
      The function.
    """
    functions = {
        name: optimizer_trial(
            name.removesuffix("_2"), trial, num_steps, warmup_steps, config.final_rate, k=2
        )
        for name in AXES
    }

    def train(stage, name, settings, seeds):
        columns = dict(zip(AXES[name], settings.T, strict=True))
        columns |= {"b1": columns["b1_1"], "b2": columns["b2_1"]}  # as one stage calls them
        columns |= {"weight_decay": np.full(len(settings), config.weight_decay)}
        columns["learning_rate"] = columns.pop("rate")
        return run.sweep(
            f"{task}_{stage}_{name}",
            functions[name],
            grid(setting=points(**columns), seed=np.array(seeds)),
            chunk_size=config.chunk_size,
            grid_shape=True,
        )

    return train


def stages(config: Any, first: Train, second: Train) -> xr.Dataset:
    """Searches both optimizers, tunes the strategies, compares all, and confirms what was found.

    Args:
      config: With the fields of the figure's `Config`.
      first: Trains on the task that is searched on.
      second: Trains on the other.

    Returns:
      What each stage gives, in one dataset.
    """
    searched = xr.concat([search(config, first, name) for name in AXES], "optimizer")
    strategies = tune_strategies(config, first)
    arms = compare(config, first, searched, strategies)
    return xr.merge([searched, strategies, arms, confirm(config, second, searched)])


def search(config: Any, train: Train, name: str) -> xr.Dataset:
    """Searches one optimizer's decays and learning rate.

    A Sobol sequence in the whole box, another one around the best of the first, each with one seed;
    the best of both with more seeds, whose mean decides.

    Args:
      config: With the fields of the figure's `Config`.
      train: Of the first task.
      name: Of the optimizer.

    Returns:
      All members over `member`, the best over `finalist`, and `chosen`, the best one's place.
    """
    axes, (first_seed, *more_seeds) = AXES[name], config.tuning_seeds

    def validate(stage, cube):
        settings = config.box.settings(cube, axes)
        return train(stage, name, settings, [first_seed])["validation"][:, 0]

    cube = sobol(config.num_searched, len(axes), config.sobol_seed)
    validation = validate("searched", cube)
    smaller = sobol(config.num_refined, len(axes), config.sobol_seed + 1)
    centres = cube[lowest_few(validation, config.num_finalists)]
    refined = around(centres, smaller, config.refined_width)
    validation = np.append(validation, validate("refined", refined))
    cube = np.concatenate([cube, refined])

    settings = config.box.settings(cube, axes)
    finalists, finalist_validation, (chosen,) = choose_by_halving(
        validation[None].astype(float),
        settings[None],
        config.num_finalists,
        lambda settings: train("finalists", name, settings[0], more_seeds)["validation"][None],
    )
    edges = dict(zip(axes, at_edge(cube[chosen][None], axes)[0], strict=True))
    return xr.Dataset(
        {
            "setting": (("member", "coordinate"), with_all_coordinates(settings, axes)),
            "validation": ("member", validation),
            "finalist_member": ("finalist", finalists[0]),
            "finalist_validation": (("finalist", "tuning_seed"), finalist_validation[0]),
            "chosen": chosen,
            "coordinate_at_edge": ("coordinate", [edges.get(c, False) for c in COORDINATES]),
        },
        {"coordinate": list(COORDINATES), "tuning_seed": np.array(config.tuning_seeds)},
    ).expand_dims(optimizer=[name])


def with_all_coordinates(settings: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """(num_settings, num_axes) as (num_settings, 5) in `COORDINATES`, NaN where there is no axis.

    >>> with_all_coordinates(np.array([[0.9, 0.99, 1e-3]]), AXES["adamw"]).tolist()
    [[0.9, 0.99, nan, nan, 0.001]]
    """
    found = np.full((len(settings), len(COORDINATES)), np.nan)
    found[:, [COORDINATES.index(axis) for axis in axes]] = settings
    return found


def tune_strategies(config: Any, train: Train) -> xr.Dataset:
    """Tunes the learning rate of 2-Adam with the decays of each of the paper's strategies.

    Args:
      config: With the fields of the figure's `Config`.
      train: Of the first task.

    Returns:
      The sweep over `strategy` and `strategy_rate`, and what was chosen of it over `strategy`.
    """
    rates = np.array(config.strategy_rates) * config.learning_rate
    settings = np.array(
        [[_of_strategy(strategy, rate) for rate in rates] for strategy in STRATEGIES]
    )
    validation, places, means = tune_rates(config, train, "strategies", KADAM, settings)
    return xr.Dataset(
        {
            "strategy_validation": (("strategy", "strategy_rate"), validation),
            "strategy_setting": (
                ("strategy", "coordinate"),
                settings[np.arange(len(places)), places],
            ),
            "strategy_mean": ("strategy", means),
            "strategy_at_edge": ("strategy", np.isin(places, [0, len(rates) - 1])),
        },
        {
            "strategy": list(STRATEGIES),
            "strategy_rate": rates,
            "coordinate": list(COORDINATES),
        },
    )


def tune_rates(
    config: Any, train: Train, stage: str, name: str, settings: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chooses learning rates: all of them with one seed, the best few with all tuning seeds.

    Args:
      config: With `tuning_seeds`.
      train: Of the task.
      stage: Part of the sweeps' names.
      name: Of the optimizer.
      settings: (num_decays, num_rates, num_axes).

    Returns:
      Validation losses with the first seed, (num_decays, num_rates); then for each of the decays
      the place of the rate with the lowest mean, and that mean, infinite if all diverged.
    """
    first_seed, *more_seeds = config.tuning_seeds

    def validate(stage, settings, seeds):
        losses = train(stage, name, settings.reshape(-1, settings.shape[-1]), seeds)["validation"]
        return losses.astype(float).reshape(*settings.shape[:2], len(seeds))

    first = validate(stage, settings, [first_seed])[..., 0]
    finalists = choose_by_halving(
        first, settings, FEW_RATES, lambda few: validate(f"{stage}_few", few, more_seeds)
    )
    means = finalists.losses.mean(-1)
    return first, finalists.chosen, np.where(np.isfinite(means), means, np.inf).min(1)


def _of_strategy(strategy: str, rate: float) -> tuple[float, ...]:
    decays = strategy_decays(2, strategy)
    return decays["b1"], decays["b2"], decays["b1"], decays["b2"], rate


def compare(config: Any, train: Train, searched: xr.Dataset, strategies: xr.Dataset) -> xr.Dataset:
    """Trains what is compared as it was chosen, with fresh seeds.

    Of the strategies these are inverse exp and the best one on the validation split.

    Args:
      config: With the fields of the figure's `Config`.
      train: Of the first task.
      searched: From `search`, over `optimizer`.
      strategies: From `tune_strategies`.

    Returns:
      What every arm is, and its loss on the test split over `arm` and `seed`, NaN for the others.
    """
    best = searched.isel(member=searched.chosen)
    settings = np.concatenate([best.setting, strategies.strategy_setting])
    one_stage = [COORDINATES.index(axis) for axis in AXES[ADAMW]]
    compared = {
        SEARCHED,
        "inverse_exp",
        strategies.strategy.values[lowest(strategies.strategy_mean)],
    }
    is_compared = np.isin(ARMS, list(compared))
    test = np.full((len(ARMS), config.num_seeds), np.nan)
    test[:1] = train("fresh", ADAMW, settings[:1, one_stage], config.seeds)["test"]
    test[is_compared] = train("fresh", KADAM, settings[is_compared], config.seeds)["test"]
    means = searched.finalist_validation.mean("tuning_seed", skipna=False)
    means = means.where(np.isfinite(means)).min("finalist")
    edges = searched.coordinate_at_edge.sel(coordinate="rate")
    return xr.Dataset(
        {
            "arm_setting": (("arm", "coordinate"), settings),
            "mean_validation": ("arm", np.append(means, strategies.strategy_mean)),
            "rate_at_edge": ("arm", np.append(edges, strategies.strategy_at_edge)),
            "test": (("arm", "seed"), test),
        },
        {"arm": list(ARMS), "coordinate": list(COORDINATES), "seed": np.array(config.seeds)},
    )


def confirm(config: Any, train: Train, searched: xr.Dataset) -> xr.Dataset:
    """Both optimizers on the second task, the decays kept, the learning rate tuned again.

    Args:
      config: With the fields of the figure's `Config`.
      train: Of the second task.
      searched: From `search`, over `optimizer`.

    Returns:
      The sweep over the learning rate, what was chosen, and the fresh seeds' losses on the test
      split, over `optimizer`.
    """
    rates = np.array(config.second_rates) * config.learning_rate
    parts = []
    for name, axes in AXES.items():
        one = searched.sel(optimizer=name)
        decays = one.setting.isel(member=one.chosen).sel(coordinate=list(axes[:-1])).values
        settings = np.column_stack([np.tile(decays, (len(rates), 1)), rates])
        validation, (place,), _ = tune_rates(config, train, "rates", name, settings[None])
        fresh = train("fresh", name, settings[place][None], config.seeds)["test"][0]
        found = {
            "second_validation": ("second_rate", validation[0]),
            "second_chosen_rate": rates[place],
            "second_rate_at_edge": place in (0, len(rates) - 1),
            "second_test": ("seed", fresh),
        }
        coords = {"second_rate": rates, "seed": np.array(config.seeds)}
        parts.append(xr.Dataset(found, coords).expand_dims(optimizer=[name]))
    return xr.concat(parts, "optimizer")
