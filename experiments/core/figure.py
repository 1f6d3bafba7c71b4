"""A figure as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr
from matplotlib.figure import Figure as Canvas

from experiments.core.claims import Claim, Judgment, judge
from experiments.core.config import FigureConfig
from experiments.core.run import Run


@dataclass(frozen=True)
class Figure:
    """A figure as data.

    Attributes:
      name: The name on the command line and on disk; the folder's name.
      title: One line.
      paper: Where the paper has it, "Fig. 2", or "not in the paper".
      caption: Describes the drawing and the setup; may contain `{field}` of the configuration,
        dotted names included: `{model.width}`.
      presets: A configuration for each of "smoke", "laptop" and "paper", and for "evening" if
        claims stay open at "laptop" that more seeds or steps can decide.
      compute: `compute(config, run)` returns a labeled dataset: every variable and coordinate has a
        `long_name` and, if it has one, `units` in its attrs. Variables without dimensions are
        printed in the report as the figure's numbers. The configuration and provenance are added
        afterward.
      plot: `plot(dataset)` returns `{suffix: matplotlib figure}`; "" is the plain `<name>.png`, "a"
        is `<name>_a.png`. It reads nothing but the dataset, including `dataset.attrs["config"]`
        (JSON), and draws with `matplotlib.figure.Figure`, never with pyplot.
      minimum: The laptop minimum of fields that decide how far a verdict can be trusted; below
        it every verdict is "inconclusive".
      claims: The claims judged by its dataset, in the report's order.
      question: The question that it answers, one of `core.questions` or its own.
      decided_by: Ids of the claims that decide the question, each with words around its number
        that the answer may quote, as in "the loss is {} nats", or "" if the answer quotes others.
    """

    name: str
    title: str
    paper: str
    caption: str
    presets: Mapping[str, FigureConfig]
    compute: Callable[[Any, Run], xr.Dataset]
    plot: Callable[[xr.Dataset], dict[str, Canvas]]
    minimum: Mapping[str, float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    question: str = ""
    decided_by: Mapping[str, str] = field(default_factory=dict)

    def judge(self, dataset: xr.Dataset) -> tuple[Judgment, ...]:
        """Apply every claim to a dataset of this figure, in order."""
        return tuple(judge(claim, dataset, self.minimum) for claim in self.claims)
