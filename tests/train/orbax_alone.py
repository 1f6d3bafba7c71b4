"""Orbax without our `Checkpoints`, as programs: `python -m tests.train.orbax_alone CASE FOLDER`.

Nothing but JAX and orbax is imported, and a program that hangs ends with a traceback.
"""

import contextlib
import faulthandler
import os
import resource
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

SECONDS = 300
"""After these, a program that hangs is ended."""
TREE = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(30, 50)), jnp.float32)}


@contextlib.contextmanager
def manager(folder, **options):
    options = ocp.CheckpointManagerOptions(**options)
    with contextlib.closing(ocp.CheckpointManager(folder, options=options)) as opened:
        yield opened


def save(opened, step, tree=TREE, **options):
    saved = opened.save(step, args=ocp.args.StandardSave(tree), **options)
    opened.wait_until_finished()
    return saved


def failing(folder):
    """Write to a disk without space for any array, and print what is there then."""
    noise = np.random.default_rng(0).normal(size=(8, 100_000))
    large = {str(number): jnp.asarray(row, jnp.float32) for number, row in enumerate(noise)}
    with manager(folder, max_to_keep=1) as opened:
        save(opened, 1, large)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            save(opened, 2, large)
        except ValueError:
            print(sorted(path.name for path in folder.iterdir()), opened.latest_step())
    sys.stdout.flush()
    os._exit(0)


def vanished(folder):
    """Write where the folder has become a file."""
    with manager(folder) as opened:
        shutil.rmtree(folder)
        folder.write_text("a file")
        try:
            save(opened, 1)
        except NotADirectoryError:
            print("failed", flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    {"failing": failing, "vanished": vanished}[sys.argv[1]](Path(sys.argv[2]))
