"""A small figure, alone on the command line: `python -m tests.reproduce.toy_figure run toy ...`.

With "die" in front of the command, the process is terminated as soon as a chunk is written.
"""

import os
import signal
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from experiments import __main__ as cli
from experiments import figures
from experiments.core import plot as plotting
from experiments.core.config import FigureConfig
from experiments.core.figure import Figure
from experiments.core.store import ChunkStore, named
from kadam_jax import grid, kadam


@dataclass(frozen=True)
class Config(FigureConfig):
    """Runs of k-Adam.

    Attributes:
      num_seeds: With each of two learning rates.
    """

    num_seeds: int = 3


def compute(config, run):
    def train(member):
        optimizer = kadam(member["learning_rate"], k=2)
        matrix = jax.random.normal(jax.random.key(member["seed"]), (8, 8)) / 3

        def step(carry, _):
            params, state = carry
            loss, grads = jax.value_and_grad(lambda x: jnp.sum((matrix @ x - 1) ** 2))(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        params = jnp.zeros(8)
        return {"loss": jax.lax.scan(step, (params, optimizer.init(params)), length=40)[1]}

    members = grid(learning_rate=[1e-3, 1e-2], seed=range(config.num_seeds))
    loss = run.sweep("main", train, members, chunk_size=4)["loss"]
    rest = run.sweep("rest", lambda member: {"y": jnp.sin(member["x"])}, grid(x=np.arange(3.0)))
    return xr.Dataset(
        {
            "loss": named((("rate", "seed", "step"), loss), "loss"),
            "y": named(("point", rest["y"]), "sine"),
        }
    )


def plot(dataset):
    canvas, axes = plotting.canvas(2, 2)
    axes.plot(dataset.loss[:, 0].T)
    return {"": canvas}


PRESETS = dict.fromkeys(("smoke", "laptop", "paper"), Config())
FIGURE = Figure("toy", "Toy", "not in the paper", "", PRESETS, compute, plot, minimum={})


def save_and_die(*arguments, save=ChunkStore.save):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    figures.discover = lambda: {"toy": FIGURE}
    if sys.argv[1] == "die":
        ChunkStore.save = save_and_die
        del sys.argv[1]
    sys.exit(cli.main(sys.argv[1:]))
