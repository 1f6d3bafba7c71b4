"""k-Adam for several k and strategies, each tuned before the comparison; shared by Figs. 6, 15, 16.

An arm is a strategy at a k; at k = 1 the strategies agree, and Adam represents all of them. Every
arm is trained once at every learning rate, weight decay and kind of decay; the best on the
validation split is trained again with fresh seeds and measured on the test split. Lower measures
are better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optax
import xarray as xr

from experiments.core.config import check_between, check_ks, check_names, check_rising, require
from experiments.core.run import Run
from experiments.core.stats import Estimate, at_end, number, student
from experiments.core.store import coordinates, labeled, named, over
from experiments.training.optimizers import Member, make_optimizer, strategy_decays
from experiments.training.trials import Trial
from experiments.training.tuning import trainer, tune
from kadam_jax import STRATEGIES, grid, points

TUNING_SEED = 0
ADAM = "adam"
ARM = "strategy and k; adam is k = 1"
DECAYS = ("decoupled", "coupled")


@dataclass(frozen=True)
class ComparisonConfig:
    """The fields of comparisons, with `learning_rate`, `num_seeds`, `eps` and `chunk_size`.

    Attributes:
      ks: Numbers of stages, starting with 1.
      b1: γ̃, which a strategy turns into every stage's decay.
      b2: β̃.
      rates: Learning rates of the sweep, as multiples of learning_rate, from the lowest.
      weight_decays: λ of the sweep.
      decays: Whether λθ is added after the last stage ("decoupled") or before the first, to the
        gradient ("coupled").
    """

    ks: tuple[int, ...] = (1, 2, 3, 4, 5)
    b1: float = 0.9
    b2: float = 0.999
    rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    weight_decays: tuple[float, ...] = (1e-2,)
    decays: tuple[Literal["decoupled", "coupled"], ...] = ("decoupled",)

    def check_comparison(self) -> None:
        """Raise ConfigError for fields that allow no comparison."""
        check_ks(self.ks)
        check_between(self, b1=(0, 1), b2=(0, 1))
        check_rising(rates=self.rates)
        decays = self.weight_decays
        rule = "weight_decays must be numbers that are not negative"
        require(bool(decays) and min(decays) >= 0, rule, decays)
        check_names(self, "decays", DECAYS)
        rule = "num_seeds must be at least 2, since rivals are chosen on the other seeds"
        require(self.num_seeds >= 2, rule, self.num_seeds)

    @property
    def seeds(self) -> range:
        """Fresh seeds, for the test split."""
        return range(TUNING_SEED + 1, TUNING_SEED + 1 + self.num_seeds)

    @property
    def learning_rates(self) -> np.ndarray:
        """The learning rates η of the sweep."""
        return self.learning_rate * np.array(self.rates)

    @property
    def arms(self) -> tuple[tuple[str, int], ...]:
        """Strategies and their k: Adam, then every strategy at every k > 1."""
        several = ((strategy, k) for k in self.ks[1:] for strategy in STRATEGIES)
        return (ADAM, 1), *several


def label(strategy: str, k: int) -> str:
    """Return an arm's name: "adam", or the strategy and k."""
    return ADAM if k == 1 else f"{strategy}_{k}"


def either_decay(member: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Return k-Adam with its kind of decay as a number, so that both kinds share a program.

    Args:
      member: `coupled` is 1 or 0.
      schedule: Multiplies η at every step.

    Returns:
      The optimizer.
    """
    coupled = member["weight_decay"] * member["coupled"]
    decoupled = {"weight_decay": member["weight_decay"] - coupled, "coupled": False}
    return optax.chain(
        optax.add_decayed_weights(coupled),
        make_optimizer("kadam", {**member, **decoupled}, schedule),
    )


def compare(
    config: Any, run: Run, trial: Trial, schedule: optax.Schedule
) -> tuple[xr.Dataset, xr.Dataset]:
    """Tune every arm, then train it with fresh seeds, with one program for each k.

    Args:
      config: Has the fields of `ComparisonConfig`.
      run: The figure's run.
      trial: The training that is compared.
      schedule: Multiplies every learning rate.

    Returns:
      The results of `trial` over arm, decay, weight_decay and rate, with the choices made from
      these, `chosen_decay`, `chosen_weight_decay` and `chosen_rate`, and `rate_at_edge`, whether
      that is the first or the last rate, beyond which the arm might be better; then the results of
      what was chosen with fresh seeds, over arm and seed.
    """
    swept, fresh = zip(*(_compare(config, run, trial, schedule, k) for k in config.ks), strict=True)
    return xr.concat(swept, "arm"), xr.concat(fresh, "arm")


def _compare(config, run, trial, schedule, k):
    """Run `compare` for one k."""
    arms = [strategy for strategy, stages in config.arms if stages == k]
    names = [label(strategy, k) for strategy in arms]
    rules = ["naive" if strategy == ADAM else strategy for strategy in arms]
    decays = [strategy_decays(k, rule, config.b1, config.b2) for rule in rules]

    def fn(member):
        optimizer = either_decay({**member, "k": k, "eps": config.eps}, schedule)
        return trial(optimizer, member["seed"])

    train = trainer(run, str(k), fn, config.chunk_size)
    tried = grid(
        arm=points(**{name: np.array([of[name] for of in decays]) for name in ("b1", "b2")}),
        coupled=(np.array(config.decays) == "coupled").astype(float),
        weight_decay=np.array(config.weight_decays),
        learning_rate=config.learning_rates,
    )
    sizes = tried.shape
    tried = {name: column.reshape(len(arms), -1) for name, column in tried.items()}
    tuned = tune(train, tried, [TUNING_SEED])
    swept = _dataset(
        {name: x.reshape(*sizes, *x.shape[3:]) for name, x in tuned.first.items()},
        arm=(names, ARM),
        decay=(config.decays, "where weight decay is added: before or after the stages"),
        weight_decay=(config.weight_decays, "weight decay λ"),
        rate=(config.learning_rates, "learning rate η"),
    )
    decay, weight_decay, rate = np.unravel_index(tuned.chosen, sizes[1:])
    best = "that is best on the validation split"
    chosen = {
        "chosen_decay": (np.array(config.decays)[decay], f"kind of weight decay {best}"),
        "chosen_weight_decay": (
            np.array(config.weight_decays)[weight_decay],
            f"weight decay λ {best}",
        ),
        "chosen_rate": (config.learning_rates[rate], f"learning rate η {best}"),
        "rate_at_edge": (
            at_end(rate, sizes[-1]),
            "whether the chosen learning rate is the lowest or the highest",
        ),
    }
    fresh = train("fresh", tuned.picked, config.seeds)
    fresh = _dataset(fresh, arm=(names, ARM), seed=(config.seeds, "fresh seed"))
    return swept.assign(over("arm", chosen)), fresh


def _dataset(arrays: Mapping[str, np.ndarray], **axes: Sequence[Any]) -> xr.Dataset:
    """Return arrays over the axes, and over examples if they have one more dimension."""
    dims = (*axes, "example")
    return xr.Dataset(
        {name: (dims[: x.ndim], x) for name, x in arrays.items()}, coordinates(**axes)
    )


def crossed_interval(values: xr.DataArray) -> Estimate:
    """Return the mean over seeds and test examples, with a 95% interval for new seeds and examples.

    Every seed is measured on the same examples, so the uncertainty comes from both: the squared
    standard errors of both means add up (which is a little too wide, since what they share counts
    twice).

    Args:
      values: Values over `seed` and `example`.

    Returns:
      By Student's t with the seeds' degrees of freedom; all NaN if a value is.

    >>> crossed_interval(xr.DataArray(np.ones((3, 4)), dims=("seed", "example")))
    Estimate(value=1.0, low=1.0, high=1.0, n=3)
    """
    variance = sum(
        values.mean(other).var(ddof=1).item() / values.sizes[dim]
        for dim, other in (("seed", "example"), ("example", "seed"))
    )
    mean = values.astype(float).mean(skipna=False).item()
    half = student(values.sizes["seed"]) * np.sqrt(variance)
    return Estimate.of(mean + np.array([0, -half, half]), values.sizes["seed"])


def analyze(
    config: Any, swept: xr.Dataset, fresh: xr.Dataset, measure: str, units: str
) -> xr.Dataset:
    """Compute the figure's dataset.

    Args:
      config: Has the fields of `ComparisonConfig`.
      swept: From `compare`.
      fresh: From `compare`.
      measure: What `validation` and `test` measure; lower is better.
      units: Units of the measure.

    Returns:
      The sweep, what was chosen, the paper's statistic and the fresh seeds' tests, labeled.
    """
    strategies, ks = zip(*config.arms, strict=True)
    swept = swept.assign_coords(
        over(
            "arm",
            {"strategy": (strategies, "strategy of the stages' decays"), "k": (ks, "stages k")},
        )
    )
    swept_test = named(
        swept.test.mean("example"), f"{measure} on the test split, tuning seed", units
    )
    gains = -(fresh.test - fresh.test.sel(arm=ADAM, drop=True))
    what = f"{measure} of Adam minus that of"
    data = swept.assign(
        validation=named(
            swept.validation, f"{measure} on the validation split, tuning seed", units
        ),
        validation_loss=named(
            swept.validation_loss, "cross-entropy on the validation split, tuning seed", "nat"
        ),
        swept_test=swept_test,
        best_swept=named(
            swept_test.min(["weight_decay", "rate"]),
            f"lowest {measure} on the test split over the sweep, one seed",
            units,
        ),
        test=named(fresh.test, f"{measure} of a test example, fresh seeds", units),
        mean_test=number(
            [crossed_interval(test) for test in fresh.test],
            f"{measure} on the test split, mean over fresh seeds",
            units,
            ["arm"],
        ),
        gain=number(
            [crossed_interval(gain) for gain in gains],
            f"{what} the arm, mean over fresh seeds",
            units,
            ["arm"],
        ),
    )
    data["optimism"] = named(
        data.mean_test.sel(end="value", drop=True) - data.best_swept.min("decay"),
        "mean over fresh seeds minus the lowest over the sweep",
        units,
    )
    own = data.mean_test.sel(arm=ADAM, drop=True)
    numbers = {"adam_test": named(own, f"Adam's {measure}, mean over fresh seeds", units)}
    for arm in data.arm.values[1:].tolist():
        gain = data.gain.sel(arm=arm, drop=True)
        numbers[f"gain_{arm}"] = named(gain, f"{what} {arm}, fresh seeds", units)
    return labeled(data.assign(numbers))
