"""Families of figures, one for each part of the theory, with a folder for each figure.

A figure's folder has four files: `__init__.py` with `FIGURE`, its words and presets; `run.py` with
`Config` and `compute(config, run)`, and further parts named by subject; `plot.py` with
`plot(dataset)`; and `claims.py` with `CLAIMS`. Code shared by the figures of a family is in the
family's folder. Figures never import each other, nor do families.

A new figure needs no change in any other module, but two more things: a row in PAPER.md, under
"Figures", that names what it shows of the paper, or says that the paper does not have it; and a
module of its own tests, as below. Its claims are committed before its first result. The parts look
like this::

    # experiments/figures/flow/kernel_decay/__init__.py
    FIGURE = Figure(
        name="kernel_decay", title="…", caption="… at β = {b2:g}", paper="Lemma 1",
        presets={"smoke": Config(num_points=4), "laptop": Config(), "paper": Config()},
        compute=compute, plot=plot, claims=CLAIMS, minimum={"num_points": 20}, question=…,
    )

    # run.py
    @dataclass(frozen=True)
    class Config(FigureConfig):  # or TrainingConfig, ImagesConfig: they name the data
        '''What is computed.

        Attributes:
          num_points: how many points the kernel is evaluated at.
        '''

        num_points: int = 40

        def __post_init__(self):
            check_least(self, num_points=2)

    def compute(config, run):
        return xr.Dataset({"weight": named(("lag", …), "weight of the kernel", "1/step")})

    # plot.py: canvases by suffix, from experiments.core.plot
    def plot(dataset):
        figure, panels = canvas(…)
        return {"": figure}

    # claims.py: a statistic of the dataset, and what it must be for the claim to hold
    CLAIMS = (Claim(id="the-kernel-decays", figure="kernel_decay", …),)

Statistics with intervals are in `experiments.core.stats`, labels in `experiments.core.store`.

`tests/figures/test_every_figure.py` tests what holds for every figure. It reads `CONTRACT` in the
module of a figure's own tests, `tests/figures/<family>/test_<figure>.py`: the smallest
configuration, the configurations that are refused, and data that support and refute each claim.
"""

from experiments.core.catalog import Catalog


def discover() -> Catalog:
    """Return all figures by name: `FIGURE` of every package in a family."""
    return Catalog("figures/*/*/__init__.py", "FIGURE")
