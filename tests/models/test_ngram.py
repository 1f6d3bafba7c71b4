"""Tests of models/ngram.py: what it sees, and what it rejects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.functional import functional
from models.ngram import NGram, NGramConfig

CONFIG = NGramConfig(vocab_size=11, context=3, embedding_size=2, width=5)
TOKENS = jax.random.randint(jax.random.key(1), (4, 3), 0, 11)


@pytest.fixture(scope="module")
def model():
    """(params, apply)."""
    init, apply = functional(lambda rngs: NGram(CONFIG, rngs=rngs))
    params, state = init(jax.random.key(0))
    assert state == {}
    return params, jax.jit(lambda params, tokens: apply(params, {}, tokens)[0])


def test_logits_are_those_of_a_loop_over_examples(model):
    params, apply = model
    arrays = jax.tree.map(np.asarray, params)
    hidden, output = arrays["hidden"], arrays["logits"]
    for tokens, logits in zip(np.asarray(TOKENS), apply(params, TOKENS), strict=True):
        seen = np.concatenate([arrays["embedding"]["embedding"][token] for token in tokens])
        units = np.tanh(seen @ hidden["kernel"] + hidden["bias"])
        np.testing.assert_allclose(
            logits, units @ output["kernel"] + output["bias"], rtol=1e-5, atol=1e-6
        )


def test_every_position_of_the_context_matters(model):
    params, apply = model
    before = apply(params, TOKENS)
    for place in range(CONFIG.context):
        other = TOKENS.at[0, place].set((TOKENS[0, place] + 1) % 11)
        changed = (apply(params, other) != before).any(1)
        assert changed.tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", ["vocab_size", "context", "embedding_size", "width"])
@pytest.mark.parametrize("value", [0, 2.0])
def test_a_size_is_an_integer_of_at_least_one(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer"):
        NGramConfig(**{name: value})


@pytest.mark.parametrize("tokens", [TOKENS[:, :2], TOKENS[0], TOKENS.astype(jnp.float32)])
def test_other_tokens_raise(model, tokens):
    params, apply = model
    with pytest.raises(ValueError, match=r"tokens must be integers \(batch, 3\)"):
        apply(params, tokens)
