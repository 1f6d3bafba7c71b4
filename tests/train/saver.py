"""`python -m tests.train.saver FOLDER`: a child for each line of input, saving until killed.

A child prints its process id, the step it resumes from, and every step whose save is complete.
"""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.train.checkpoints import Checkpoints

NUM_ENTRIES = 200_000
CONFIG = {"k": 2}


def arrays_at(step):
    noise = np.random.default_rng(step).normal(size=NUM_ENTRIES).astype(np.float32)
    return {"noise": jnp.asarray(noise), "key": jax.random.key(step)}


def template():
    return jax.eval_shape(lambda: arrays_at(0))


def metrics_at(step):
    return {"loss": float(step % 7)}


def save_forever(folder):
    checkpoints = Checkpoints(folder, config=CONFIG)
    found = checkpoints.restore(template())
    step = found[0] if found else 0
    print(os.getpid(), flush=True)
    print(step, flush=True)
    while True:
        step += 1
        checkpoints.save(step, arrays_at(step), {"step": step})
        checkpoints.score(step, metrics_at(step))
        print(step - 1, flush=True)  # this save has waited for that one


if __name__ == "__main__":
    for _ in sys.stdin:
        if os.fork() == 0:  # JAX has not started, so imports are done once
            save_forever(Path(sys.argv[1]))
        os.wait()
        print("killed", flush=True)
