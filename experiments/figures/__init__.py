"""Families of figures, one for each part of the theory, with a folder for each figure.

A figure's folder has four files: `__init__.py` with `FIGURE`, its words and presets; `run.py` with
`Config` and `compute(config, run)`, and further parts named by subject; `plot.py` with
`plot(dataset)`; and `claims.py` with `CLAIMS`. Code shared by the figures of a family is in the
family's folder. Figures never import each other, nor do families.

A new figure needs no change in any other module, but three more things: a row in PAPER.md, under
"Figures", that names what it shows of the paper, or says that the paper does not have it; a module
of its own tests, as below; and, once its results are committed, the numbers of figures, claims and
verdicts in README.md and docs/faq.md. Its claims are committed before its first result. The parts
look like this, and `FILES` in tests/figures/test_new_figure.py is a whole figure::

    # experiments/figures/flow/kernel_decay/__init__.py: `list` shows its docstring's first line
    FIGURE = Figure(  # from experiments.core.figure, which describes all arguments
        name="kernel_decay", title="…", caption="… at {num_points} points",
        paper="not in the paper",  # or the picture that it redraws: "Fig. 1", "Figs. 7 and 11"
        presets={"smoke": Config(num_points=4), "laptop": Config(), "paper": Config()},
        compute=compute, plot=plot, claims=CLAIMS,
        minimum={"num_points": 20},  # needed where there are claims: below it nothing is decided
        question=FLOW_FOLLOWS_ADAM,  # from experiments.core.questions
    )

    # run.py: FigureConfig and checks are from experiments.core.config
    @dataclass(frozen=True)
    class Config(FigureConfig):  # or TrainingConfig, ImagesConfig: they name the data
        '''What is computed.

        Attributes:
          num_points: how many points the kernel is evaluated at.
        '''

        num_points: int = 40

        def __post_init__(self):
            check_least(self, num_points=2)

    def compute(config, run):  # run.sweep computes members on all devices and keeps finished ones
        weight = run.sweep("weight", weight_of, points(lag=lag))["weight"]
        return xr.Dataset(
            over("lag", {"weight": (weight, "weight of the kernel", "1/step")}),
            coordinates(lag=(lag, "age of a gradient", "step")),
        )

    # plot.py: canvases by suffix, from experiments.core.plot
    def plot(dataset):
        figure, panels = canvas(…)
        return {"": figure}

    # claims.py: a statistic of the dataset, and what it must be for the claim to hold
    CLAIMS = (Claim(id="the-kernel-decays", figure="kernel_decay", …),)

`Claim` is in `experiments.core.claims`, statistics with intervals are in `experiments.core.stats`,
and labels, which every variable and coordinate needs, in `experiments.core.store`.

`tests/figures/test_every_figure.py` tests what holds for every figure. It reads `CONTRACT` in the
module of a figure's own tests, `tests/figures/<family>/test_<figure>.py`: the smallest
configuration, the configurations that are refused, and data that support and refute each claim.
`Contract` in tests/figures/contract.py describes its fields::

    CONTRACT = Contract(
        figure=FIGURE, config=Config(num_points=3), panels={"": 1}, refused=[{"num_points": 1}],
        made_up=made_up,  # made_up(rate=0.9) is a dataset like that of the laptop preset
        cases={"the-kernel-decays": [{"rate": 0.9}, {"rate": 1.1}]},  # supports it, refutes it
    )
"""

from experiments.core.catalog import Catalog


def discover() -> Catalog:
    """Return all figures by name: `FIGURE` of every package in a family."""
    return Catalog("figures/*/*/__init__.py", "FIGURE")
