"""The paper's claims about k-Adam's strategies, as rules for each task; statistics of contenders.

A difference is one of test measures, where lower is better, paired by seed and test example. If a
learning rate was chosen at an end of its grid, the arm may be better than measured, so the
difference's interval is open on that side.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from experiments.core.claims import Claim, settings
from experiments.core.stats import NOTHING, Estimate, best_on_other_seeds, paired_mean
from experiments.figures.optimizer.strategy_comparison import ADAM, crossed_interval
from experiments.training.tuning import lowest

FIRST_THREE = ("inverse_exp", "exp", "scaled")
TWO_ADAM = "inverse_exp_2"
CIFAR_WIDTH = 1 / 8
"""The width of the narrowest CNN that allows a statement about CIFAR-10."""


class Side(NamedTuple):
    """One side of a difference."""

    values: xr.DataArray
    """Test measures over seed and example."""
    may_be_lower: bool
    """Whether a grid ended before it showed how low the values can be."""


def best(run: xr.Dataset, arms: Sequence[str]) -> Side:
    """Return each seed's test measures of the arm that is lowest on the other seeds."""
    _, values = _chosen_elsewhere(run, arms, sign=1)
    return Side(values, bool(run.rate_at_edge.sel(arm=arms).any()))


def worst(run: xr.Dataset, arms: Sequence[str]) -> Side:
    """Return each seed's test measures of the arm that is highest on the other seeds."""
    chosen, values = _chosen_elsewhere(run, arms, sign=-1)
    return Side(values, bool(run.rate_at_edge.sel(arm=chosen).any()))


def _chosen_elsewhere(
    run: xr.Dataset, arms: Sequence[str], sign: int
) -> tuple[np.ndarray, xr.DataArray]:
    """Return each seed's arm, and its test measures."""
    test = run.test.sel(arm=list(arms))
    place = best_on_other_seeds(sign * test.mean("example", skipna=False), "arm")
    chosen = test.isel(arm=place)
    return test.arm[place].values, chosen.drop_vars(["arm", "strategy", "k"], errors="ignore")


def difference(*pairs: tuple[Side, Side]) -> Estimate:
    """Return the first sides minus the second ones, mean over pairs, seeds and examples."""
    if not pairs:
        return NOTHING
    differences = [first.values - second.values for first, second in pairs]
    return crossed_interval(sum(differences) / len(pairs)).opened(
        lower=any(first.may_be_lower for first, _ in pairs),
        higher=any(second.may_be_lower for _, second in pairs),
    )


def _arms(run: xr.Dataset, strategies: Sequence[str], least_k: int) -> list[str]:
    """Return the arms of some strategies with k >= `least_k`."""
    wanted = run.strategy.isin(list(strategies)) & (run.k >= least_k)
    return run.arm.values[wanted.values].tolist()


def _beyond_two_adam(run: xr.Dataset, others: Sequence[str]) -> Estimate:
    """Return the best of some arms minus 2-Adam, if it was trained."""
    if TWO_ADAM not in run.arm.values:
        return NOTHING
    return difference((best(run, others), best(run, [TWO_ADAM])))


def _two_adam_is_best(run: xr.Dataset) -> Estimate:
    return _beyond_two_adam(run, [arm for arm in run.arm.values.tolist() if arm != TWO_ADAM])


def _naive_is_bad(run: xr.Dataset) -> Estimate:
    return difference(
        *(
            (best(run, [arm]), worst(run, [ADAM, *_same_k(run, arm)]))
            for arm in _arms(run, ["naive"], 3)
        )
    )


def _same_k(run: xr.Dataset, arm: str) -> list[str]:
    """Return the first three strategies' arms at an arm's k."""
    k = run.k.sel(arm=arm).item()
    return [name for name in _arms(run, FIRST_THREE, k) if run.k.sel(arm=name).item() == k]


def _decides(run: xr.Dataset) -> bool:
    """Return whether the network is wide enough for its images."""
    config = settings(run)
    return getattr(config, "dataset", "digits") == "digits" or config.model.width >= CIFAR_WIDTH


def strategy_claims(figure: str, task: str, section: str) -> tuple[Claim, ...]:
    """Return the claims about one task.

    Args:
      figure: The figure whose dataset is read.
      task: The task's name in ids and statements.
      section: Where the paper discusses it.

    Returns:
      The claims.
    """
    unit = {"images": "percentage points", "text": "nats per token"}[task]
    measure = {"images": "error", "text": "loss"}[task]

    def claim(
        name: str,
        statement: str,
        quantity: str,
        statistic: Callable[[xr.Dataset], Estimate],
        section: str = section,
        **words: str,
    ) -> Claim:
        return Claim(
            id=f"{name}-on-{task}",
            figure=figure,
            section=section,
            statement=f"{statement}, here on {task}.",
            quantity=f"test {measure} of {quantity}, {unit}: mean over fresh seeds, each arm as it "
            "was tuned on the validation split",
            statistic=lambda run: statistic(run) if _decides(run) else NOTHING,
            accept=(0.0, math.inf),
            **words,
        )

    return (
        claim(
            "two-adam-is-best",
            "2-Adam with the inverse-exp strategy performs best",
            "the best other strategy and k, chosen on the other seeds, minus that of 2-Adam with "
            "inverse exp",
            _two_adam_is_best,
            reason="The best has the lowest measure; a tie does not count as best.",
            correction="Another strategy, another k or Adam itself does better once each is tuned "
            "in the same way.",
        ),
        claim(
            "two-adam-beats-adam",
            "2-Adam with the inverse-exp strategy outperforms Adam",
            "Adam minus that of 2-Adam with inverse exp",
            lambda run: _beyond_two_adam(run, [ADAM]),
            reason="It outperforms Adam if its test measure is lower.",
            correction="Adam, tuned in the same way, does better.",
        ),
        claim(
            "k-adam-beats-adam",
            "k-Adam outperforms Adam at some k > 1 under the inverse-exp, exp or scaled strategy",
            "Adam minus that of the best of these strategies and k > 1, chosen on the other seeds",
            lambda run: difference((best(run, [ADAM]), best(run, _arms(run, FIRST_THREE, 2)))),
            reason="As for 2-Adam; since the arm is chosen on the other seeds, it does not profit "
            "from its own luck.",
            correction="Adam, tuned in the same way, does better than all of them.",
        ),
        claim(
            "naive-is-bad",
            "The naive strategy performs particularly badly for k > 2",
            "naive minus that of the worst of Adam and the inverse-exp, exp and scaled strategies "
            "at the same k, chosen on the other seeds; mean over k > 2",
            _naive_is_bad,
            section=f"{section}, App. O" if task == "images" else section,
            reason="A strategy is particularly bad if it is worse than all of the others.",
            correction="With its learning rate tuned, another strategy is worse.",
        ),
        claim(
            "root-is-bad",
            "The root strategy performs badly",
            "root minus that of Adam, mean over k > 1",
            lambda run: difference(
                *((best(run, [arm]), best(run, [ADAM])) for arm in _arms(run, ["root"], 2))
            ),
            section="App. O",
            reason="A strategy is bad if it is worse than no second stage.",
            correction="With its learning rate tuned, it is not worse than Adam.",
        ),
    )


def best_arms(run: xr.Dataset, *sides: Sequence[str]) -> list[xr.Dataset] | None:
    """Return each side's arm with the lowest validation loss; None if a side was not trained.

    Args:
      run: What contenders were given on one task and what came out, by arm.
      sides: Arms, of which those that were trained count.

    Returns:
      Their part of `run`, with `unsure`, whether a choice of any arm of the side was at an edge.
    """
    present = [[arm for arm in side if arm in run.arm.values] for side in sides]
    return [_best_arm(run.sel(arm=side)) for side in present] if all(present) else None


def _best_arm(arms: xr.Dataset) -> xr.Dataset:
    best = arms.isel(arm=int(lowest(arms.picked_validation)), drop=True)
    return best.assign(unsure=arms.at_edge.any())


def opened_at_edges(estimate: Estimate, rival: xr.Dataset, arm: xr.Dataset) -> Estimate:
    """Open a gain of `arm` over `rival` where one of them may be better than measured."""
    return estimate.opened(lower=bool(rival.unsure), higher=bool(arm.unsure))


def gain(
    sides: Sequence[xr.Dataset] | None, measure: Callable[[xr.Dataset], np.ndarray]
) -> Estimate:
    """Return a measure of the first of two `best_arms` minus that of the second, by fresh seed."""
    if sides is None:
        return NOTHING
    rival, arm = sides
    return opened_at_edges(paired_mean(measure(rival) - measure(arm)), rival, arm)
