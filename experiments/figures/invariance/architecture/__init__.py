"""The image classifier's architecture (Fig. 10)."""

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.architecture import claims, plot
from experiments.figures.invariance.architecture.run import Config, compute
from models.cnn import CNNConfig

FIGURE = Figure(
    name="architecture",
    title="The image classifier's architecture",
    paper="Fig. 10",
    question=SCALE_INVARIANCE,
    caption="The CNN at {model.width:g} times the paper's width, drawn from the module. Each box "
    "is labeled with its output, side × side × channels, and its number of parameters. "
    "Convolutions are 3 × 3 with a padding of 1 and a bias. The connections between the blocks are "
    "found from {num_images} random images.",
    presets={
        "smoke": Config(model=CNNConfig(width=1 / 16), num_images=1),
        "laptop": Config(),
        "paper": Config(),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={"model.width": 1, "num_images": 2},
)
