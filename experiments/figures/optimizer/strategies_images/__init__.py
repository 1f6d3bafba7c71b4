"""k-Adam by number of stages and strategy on images (Figs. 6 and 15).

The test error is 100% minus the accuracy that the paper shows. The error on the validation split
chooses, with ties broken by the loss there. Test errors of the sweep are those of the last step. An
arm whose chosen learning rate is at an end of the sweep might be better beyond it. Intervals are
for other seeds and other test images. The second page draws the lowest loss over λ and the kind of
decay.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer import TUNED, panels
from experiments.figures.optimizer.strategies_images import claims, plot
from experiments.figures.optimizer.strategies_images.run import Config, compute
from models.cnn import CNNConfig

FIGURE = Figure(
    name="strategies_images",
    title="k-Adam by number of stages and strategy on images",
    paper="Figs. 6 and 15",
    question=WORTH_TRYING,
    decided_by={
        "two-adam-beats-adam-on-images": "the test error of Adam on images minus that of 2-Adam, "
        "inverse exp, is {} percentage points"
    },
    caption="The CNN at {model.width:g} times the paper's width is trained on {dataset}, batch "
    "{batch}, {num_steps} steps with a linear warm-up over the first {warmup_steps} and a cosine "
    "to "
    "{final_rate:g} of the learning rate; " + TUNED + " error. " + panels("error", "image"),
    presets={
        "smoke": Config(
            model=CNNConfig(width=1 / 32),
            num_steps=8,
            warmup_steps=2,
            num_seeds=2,
            ks=(1, 2),
            rates=(1.0, 10.0),
        ),
        "laptop": Config(
            model=CNNConfig(width=1 / 16),
            ks=(1, 2, 4),
            rates=(0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 40.0),
            weight_decays=(1e-3,),
            decays=("decoupled", "coupled"),
        ),
        "evening": Config(
            model=CNNConfig(width=1 / 8),
            num_seeds=20,
            ks=(1, 2, 4),
            rates=(0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 40.0),
            weight_decays=(1e-3,),
            decays=("decoupled", "coupled"),
            chunk_size=8,
        ),
        # Appendix H: 100 epochs, warm-up in the first 2.
        "paper": Config(
            dataset="cifar10",
            batch=512,
            num_steps=8789,
            warmup_steps=176,
            ks=tuple(range(1, 11)),
            rates=(0.06, 0.1, 0.3, 0.6, 1.0, 3.0),
            weight_decays=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
            decays=("decoupled", "coupled"),
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={"model.width": 1 / 16, "batch": 4, "num_steps": 400, "num_seeds": 5},
)
