"""Training that records the largest update of every tensor, and of the rows that text never uses.

nanoGPT's embedding has a row for each of its vocabulary's tokens. Rows of tokens that the corpus
lacks get a gradient only from the logits, which vanishes with the tokens' probability: these are
the dead gradients of §3.2.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.core.run import Run
from experiments.data import Corpus
from experiments.training.config import TrainingConfig
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax.members import Members

UNUSED = "embedding, unused rows"
EMBEDDING = "embedding"

Member = Mapping[str, jax.Array]


def unused_tokens(corpus: Corpus, vocab_size: int) -> np.ndarray:
    """Return whether each token of the vocabulary is missing from the training text.

    >>> from experiments.data import byte_corpus
    >>> unused_tokens(byte_corpus("text", bytes([0, 2] * 20)), 4).tolist()
    [False, True, False, True]
    """
    return np.bincount(corpus.tokens_train, minlength=vocab_size) == 0


def largest_by_tensor(updates: optax.Updates, unused: np.ndarray) -> dict[str, jax.Array]:
    """Return the largest modulus in each tensor by name, with the embedding's rows in two groups.

    >>> updates = {"embedding": jnp.array([[1.0], [-3.0]]), "out": jnp.array([2.0])}
    >>> largest = largest_by_tensor(updates, np.array([False, True]))
    >>> {name: float(value) for name, value in largest.items()}
    {'embedding, unused rows': 3.0, 'embedding': 1.0, 'out': 2.0}
    """
    largest = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name == EMBEDDING:
            rows = jnp.abs(leaf).max(-1)
            largest[UNUSED] = jnp.where(unused, rows, 0).max()
            leaf = jnp.where(unused, 0, rows)
        largest[name] = jnp.abs(leaf).max()
    return largest


def train_recording(
    run: Run,
    name: str,
    config: TrainingConfig,
    members: Members,
    make: Callable[[Member], optax.GradientTransformation],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Train members in one sweep and record every step.

    Args:
      run: The figure's run.
      name: The sweep's name.
      config: Gives model, data and number of steps.
      members: Columns, with `seed` and `learning_rate` among them.
      make: Makes a member's optimizer without its learning rate.

    Returns:
      Losses, and the largest updates in units of the learning rate by tensor, each of shape
      (*members.shape, num_steps).
    """
    task = language_task(config.model, run.corpus, config.batch)
    unused = unused_tokens(run.corpus, config.model.vocab_size)

    def fn(member):
        optimizer = optax.chain(
            make(member),
            optax.snapshot("largest", lambda updates: largest_by_tensor(updates, unused)),
            optax.scale_by_learning_rate(member["learning_rate"]),
        )
        result = train_member(
            task,
            optimizer,
            seed=member["seed"],
            num_steps=config.num_steps,
            read=lambda opt_state: opt_state[1].measurement["largest"],
        )
        return {"loss": result.loss, **result.read}

    arrays = run.sweep(name, fn, members, chunk_size=config.chunk_size)
    return arrays.pop("loss"), arrays
