"""k-Adam for several k and strategies, each tuned before the comparison; shared by Figs 6, 15, 16.

An arm is a strategy at a k; at k = 1 the strategies agree, and Adam represents all of them. Every
arm is trained once at every learning rate, weight decay and kind of decay; the best on the
validation split is trained again with fresh seeds and measured on the test split. Lower measures
are better.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optax
import xarray as xr

from experiments.core.config import check_ks, check_rising
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.stats import Estimate, at_end, number, student
from experiments.core.store import labeled, named
from experiments.training.optimizers import Member, make_optimizer, strategy_decays
from experiments.training.trials import Trial
from experiments.training.tuning import trainer, tune
from kadam_jax import STRATEGIES, grid, points

TUNING_SEED = 0
ADAM = "adam"
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
        """Raise ConfigError for fields with which no comparison is possible."""
        check_ks(self.ks)
        for name in ("b1", "b2"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        check_rising(rates=self.rates)
        if not self.weight_decays or min(self.weight_decays) < 0:
            raise ConfigError(
                f"weight_decays must be numbers that are not negative, got {self.weight_decays}"
            )
        if not self.decays or len(set(self.decays)) < len(self.decays):
            raise ConfigError(f"decays must be distinct names from {DECAYS}, got {self.decays}")
        if self.num_seeds < 2:
            raise ConfigError(
                "num_seeds must be at least 2, since rivals are chosen on the other seeds, got "
                f"{self.num_seeds}"
            )

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
      trial: What is trained.
      schedule: Multiplies every learning rate.

    Returns:
      The results of `trial` over arm, decay, weight_decay and rate, with what was chosen from
      these, `chosen_decay`, `chosen_weight_decay` and `chosen_rate`, and `rate_at_edge`, whether
      that is the first or the last rate, beyond which the arm might be better; then the results of
      what was chosen with fresh seeds, over arm and seed.
    """
    swept, fresh = zip(*(_compare(config, run, trial, schedule, k) for k in config.ks), strict=True)
    return xr.concat(swept, "arm"), xr.concat(fresh, "arm")


def _compare(config, run, trial, schedule, k):
    """Run `compare` for one k."""
    arms = [strategy for strategy, stages in config.arms if stages == k]
    names = {"arm": [label(strategy, k) for strategy in arms]}
    rules = ["naive" if strategy == ADAM else strategy for strategy in arms]
    decays = [strategy_decays(k, rule, config.b1, config.b2) for rule in rules]
    choices = {
        "decay": list(config.decays),
        "weight_decay": np.array(config.weight_decays),
        "rate": config.learning_rates,
    }

    def fn(member):
        optimizer = either_decay({**member, "k": k, "eps": config.eps}, schedule)
        return trial(optimizer, member["seed"])

    train = trainer(run, str(k), fn, config.chunk_size)
    tried = grid(
        arm=points(**{name: np.array([of[name] for of in decays]) for name in ("b1", "b2")}),
        coupled=(np.array(config.decays) == "coupled").astype(float),
        weight_decay=choices["weight_decay"],
        learning_rate=choices["rate"],
    )
    sizes = tried.shape
    tried = {name: column.reshape(len(arms), -1) for name, column in tried.items()}
    tuned = tune(train, tried, [TUNING_SEED])
    swept = _dataset(
        {name: x.reshape(*sizes, *x.shape[3:]) for name, x in tuned.first.items()}, names | choices
    )
    places = dict(zip(choices, np.unravel_index(tuned.chosen, sizes[1:]), strict=True))
    chosen = {
        f"chosen_{name}": ("arm", np.array(choices[name])[place]) for name, place in places.items()
    }
    chosen["rate_at_edge"] = "arm", at_end(places["rate"], sizes[-1])
    fresh = train("fresh", tuned.picked, config.seeds)
    return swept.assign(chosen), _dataset(fresh, names | {"seed": np.array(config.seeds)})


def _dataset(arrays: Mapping[str, np.ndarray], coords: Mapping[str, Any]) -> xr.Dataset:
    """Return arrays over the coordinates, and over examples if they have one more dimension."""
    dims = (*coords, "example")
    return xr.Dataset({name: (dims[: x.ndim], x) for name, x in arrays.items()}, coords)


def crossed_interval(values: xr.DataArray) -> Estimate:
    """Return the mean over seeds and test examples, with a 95% interval for others of both.

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
      measure: What validation and test measure, where lower is better.
      units: Units of the measure.

    Returns:
      The sweep, what was chosen, the paper's statistic and the fresh seeds' tests, labeled.
    """
    strategies, ks = zip(*config.arms, strict=True)
    data = swept.drop_vars("test").assign(swept_test=swept.test.mean("example"), test=fresh.test)
    data = data.assign_coords(strategy=("arm", list(strategies)), k=("arm", np.array(ks)))
    gains = -(data.test - data.test.sel(arm=ADAM, drop=True))
    data = data.assign(
        best_swept=data.swept_test.min(["weight_decay", "rate"]),
        mean_test=number(
            [crossed_interval(test) for test in data.test],
            f"{measure} on the test split, mean over fresh seeds",
            units,
            ["arm"],
        ),
        gain=number(
            [crossed_interval(gain) for gain in gains],
            f"{measure} of Adam minus that of the arm, mean over fresh seeds",
            units,
            ["arm"],
        ),
    )
    data["optimism"] = data.mean_test.sel(end="value", drop=True) - data.best_swept.min("decay")
    labels = {
        name: (text.format(measure=measure), units if unit is None else unit)
        for name, (text, unit) in LABELS.items()
    }
    own = data.mean_test.sel(arm=ADAM, drop=True)
    numbers = {"adam_test": named(own, f"Adam's {measure}, mean over fresh seeds", units)}
    for arm in data.arm.values[1:].tolist():
        what = f"{measure} of Adam minus that of {arm}, fresh seeds"
        numbers[f"gain_{arm}"] = named(data.gain.sel(arm=arm, drop=True), what, units)
    return labeled(data.assign(numbers), labels)


LABELS: Mapping[str, tuple[str, str | None]] = {
    "validation": ("{measure} on the validation split, tuning seed", None),
    "validation_loss": ("cross-entropy on the validation split, tuning seed", "nat"),
    "swept_test": ("{measure} on the test split, tuning seed", None),
    "best_swept": ("lowest {measure} on the test split over the sweep, one seed", None),
    "test": ("{measure} of a test example, fresh seeds", None),
    "optimism": ("mean over fresh seeds minus the lowest over the sweep", None),
    "chosen_decay": ("kind of weight decay that is best on the validation split", "1"),
    "chosen_weight_decay": ("weight decay λ that is best on the validation split", "1"),
    "chosen_rate": ("learning rate η that is best on the validation split", "1"),
    "rate_at_edge": ("whether the chosen learning rate is the lowest or the highest", "1"),
    "arm": ("strategy and k; adam is k = 1", "1"),
    "strategy": ("strategy of the stages' decays", "1"),
    "k": ("stages k", "1"),
    "decay": ("where weight decay is added: before or after the stages", "1"),
    "weight_decay": ("weight decay λ", "1"),
    "rate": ("learning rate η", "1"),
    "seed": ("fresh seed", "1"),
}
"""long_name and units; None stands for the measure's units."""
