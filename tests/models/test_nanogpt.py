"""Tests of the language model: size, causality, scale invariance, and learning."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from models.functional import functional
from models.nanogpt import (
    GPTConfig,
    NanoGPT,
    _indexed_logits,
    _selected_logits,
    next_token_loss,
    query_key_slices,
)

SMALL = GPTConfig(vocab_size=32, context=8, num_layers=2, num_heads=2, width=16, dropout=0.0)
KEY = jax.random.key(0)
TOKENS = jax.random.randint(jax.random.key(1), (3, SMALL.context + 1), 0, SMALL.vocab_size)


@functools.cache
def build(**changes):
    """`init` and `apply` of a small model, compiled once for the whole file."""
    config = dataclasses.replace(SMALL, **changes)
    init, apply = functional(lambda rngs: NanoGPT(config, rngs=rngs))
    return jax.jit(init), jax.jit(apply, static_argnames=("train", "loss_parts", "devices"))


@functools.partial(jax.jit, static_argnames=("apply", "train"))
def loss_of(apply, params, key=None, train=False):
    logits, _ = apply(params, {}, TOKENS[:, :-1], key, train)
    return next_token_loss(logits, TOKENS[:, 1:])


loss_and_gradient = jax.jit(jax.value_and_grad(loss_of, argnums=1), static_argnums=0)


@functools.cache
def far_from_init(qk_norm=False):
    """Parameters large enough that attention is far from uniform."""
    params, _ = build(qk_norm=qk_norm)[0](KEY)
    return jax.tree.map(lambda x: 10 * x if x.ndim > 1 else x, params)


def test_the_defaults_are_the_papers_30_million_parameters():
    init, _ = functional(lambda rngs: NanoGPT(GPTConfig(), rngs=rngs))
    params, state = jax.eval_shape(init, KEY)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert f"{count / 1e6:.2f}" == "30.02"
    assert f"{(count - params['positions'].size) / 1e6:.2f}" == "29.92"
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert state == {}


def test_initial_weights_have_nanogpts_standard_deviations():
    params, _ = build(width=128, num_layers=2)[0](KEY)
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        if "norm" in name:
            chex.assert_trees_all_equal(leaf, jnp.ones_like(leaf))
        else:
            scale = 0.01 if "'out'" in name or "'down'" in name else 0.02
            assert abs(leaf.std() / scale - 1) < 5 / math.sqrt(2 * leaf.size), name


@pytest.mark.parametrize("qk_norm", [False, True])
def test_logits_equal_a_literal_transcription(x64, qk_norm):
    _, apply = build(qk_norm=qk_norm, dtype="float64")
    params = far_from_init(qk_norm)
    erf = np.vectorize(math.erf)

    def norm(x, scale, eps=1e-5):
        centered = x - x.mean(-1, keepdims=True)
        return (
            centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps) * scale["scale"][None]
        )

    def sequence_logits(params, tokens):
        x = np.stack(
            [params["embedding"][t] + params["positions"][i] for i, t in enumerate(tokens)]
        )
        for layer in range(SMALL.num_layers):
            block = params["blocks"][layer]
            attention, normed = block["attention"], norm(x, block["attention_norm"])
            heads = []
            for head in range(SMALL.num_heads):
                q, k, v = (normed @ attention["qkv"][:, i, head] for i in range(3))
                if qk_norm:
                    q, k = norm(q, attention["query_norm"]), norm(k, attention["key_norm"])
                rows = []
                for i in range(len(tokens)):
                    weights = np.exp(k[: i + 1] @ q[i] / math.sqrt(SMALL.head_size))
                    rows.append(weights / weights.sum() @ v[: i + 1])
                heads.append(np.stack(rows))
            x = x + np.concatenate(heads, axis=-1) @ attention["out"]
            hidden = norm(x, block["mlp_norm"]) @ block["up"]
            x = x + (hidden * (1 + erf(hidden / math.sqrt(2))) / 2) @ block["down"]
        return norm(x, params["norm"]) @ params["embedding"].T

    logits, _ = apply(params, {}, TOKENS[:, :-1])
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    expected = np.stack([sequence_logits(params, tokens) for tokens in np.asarray(TOKENS[:, :-1])])
    np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)


def test_logits_depend_on_no_later_token():
    _, apply = build()
    params = far_from_init()
    direction = jax.random.normal(KEY, (SMALL.vocab_size,))

    def projected(positions):
        logits, _ = apply(params | {"positions": positions}, {}, TOKENS[:, :-1])
        return (logits @ direction).sum(0)  # (length,)

    # Each position's input enters only through its own row of the position embedding.
    jacobian = jax.jit(jax.jacrev(projected))(params["positions"])  # (length, context, width)
    influence = jnp.abs(jacobian).max(-1)
    assert jnp.all(jnp.triu(influence, 1) == 0)
    assert jnp.all(influence[jnp.tril_indices(SMALL.context)] > 1e-6)


QUERIES_AND_KEYS = [(layer, which, head) for layer in (0, 1) for which in (0, 1) for head in (0, 1)]


@functools.partial(jax.jit, static_argnames="apply")
def relative_loss_change(apply, params, factor):
    """Return the largest change from multiplying one query or key matrix by `factor`."""

    def loss(factors):  # (layers, 3, heads)
        blocks = {}
        for layer, block in params["blocks"].items():
            qkv = block["attention"]["qkv"] * factors[layer, None, :, :, None]
            blocks[layer] = block | {"attention": block["attention"] | {"qkv": qkv}}
        return loss_of(apply, params | {"blocks": blocks})

    ones = jnp.ones((SMALL.num_layers, 3, SMALL.num_heads))
    scaled = [ones.at[where].set(factor) for where in QUERIES_AND_KEYS]
    unscaled_loss, *losses = jax.vmap(loss)(jnp.stack([ones, *scaled]))
    return jnp.abs(jnp.stack(losses) / unscaled_loss - 1).max()


def gradient_cosines(apply, params):
    """Return |<W, dL/dW>| / (|W| |dL/dW|) of every query and key matrix."""
    _, grads = loss_and_gradient(apply, params)
    pairs = zip(query_key_slices(params).values(), query_key_slices(grads).values(), strict=True)
    flat = [[np.asarray(x, float).ravel() for x in pair] for pair in pairs]
    assert len(flat) == len(QUERIES_AND_KEYS)
    return np.array([abs(w @ g) / np.linalg.norm(w) / np.linalg.norm(g) for w, g in flat])


def test_qk_norm_makes_the_loss_scale_invariant():
    """This is Section 4.1 for positive factors: a negative one flips the sign of the scores."""
    _, apply = build(qk_norm=True, qk_norm_eps=0.0)
    params = far_from_init(qk_norm=True)
    assert relative_loss_change(apply, params, 1e-3) < 1e-6
    assert relative_loss_change(apply, params, 1e3) < 1e-6
    assert relative_loss_change(apply, params, -1.0) > 1e-3
    assert gradient_cosines(apply, params).max() < 1e-5


def test_without_qk_norm_the_loss_is_not_scale_invariant():
    _, apply = build()
    params = far_from_init()
    assert relative_loss_change(apply, params, 2.0) > 1e-3
    assert gradient_cosines(apply, params).min() > 1e-3


def test_only_qk_norms_epsilon_breaks_exact_invariance(x64):
    inexact, exact = (
        relative_loss_change(
            build(qk_norm=True, qk_norm_eps=eps, dtype="float64")[1], far_from_init(True), 2.0
        )
        for eps in (1e-2, 0.0)
    )
    assert inexact > 1e-6
    assert exact < 1e-13


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "qk_norm_eps": 0.0}])
def test_every_parameter_gets_a_gradient(changes):
    _, grads = loss_and_gradient(build(**changes)[1], far_from_init("qk_norm" in changes))
    for path, leaf in jax.tree.leaves_with_path(grads):
        assert jnp.all(jnp.isfinite(leaf)), path
        assert jnp.mean(leaf != 0) > 0.99, path


def test_the_initial_loss_is_that_of_uniform_guesses():
    init, apply = build(width=64)
    params, _ = init(KEY)
    # A logit is a normalized vector times N(0, 0.02²), of variance 64 * 0.02²; half is excess loss.
    assert abs(loss_of(apply, params) - math.log(SMALL.vocab_size)) < 0.05


def test_it_overfits_one_batch():
    init, apply = build()
    optimizer = optax.adam(1e-2)

    def step(carry, _):
        params, state = carry
        loss, grads = loss_and_gradient(apply, params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), loss

    params, _ = init(KEY)
    _, losses = jax.jit(lambda carry: jax.lax.scan(step, carry, length=150))(
        (params, optimizer.init(params))
    )
    assert losses[-1] < 0.05


def test_dropout_drops_only_in_training():
    _, apply = build(dropout=0.5)
    params = far_from_init()
    first, second = jax.random.split(KEY)
    evaluated = loss_of(apply, params, first)
    assert evaluated == loss_of(apply, params, second)
    trained = loss_of(apply, params, first, train=True)
    assert trained == loss_of(apply, params, first, train=True)
    assert len({float(evaluated), float(trained), float(loss_of(apply, params, second, True))}) == 3


def test_dropout_acts_on_embeddings_attention_and_branches():
    @jax.jit
    def masks_drawn():
        model = NanoGPT(dataclasses.replace(SMALL, dropout=0.5), rngs=nnx.Rngs(0))
        rngs = nnx.Rngs(dropout=0)
        model(TOKENS[:, :-1], rngs=rngs)
        return rngs.dropout.count[...]

    assert masks_drawn() == 1 + 3 * SMALL.num_layers


def test_dropout_off_leaves_no_trace_in_the_program():
    params = far_from_init()

    def program(dropout, key, train):
        _, apply = build(dropout=dropout)
        return str(jax.make_jaxpr(lambda params: loss_of(apply, params, key, train))(params))

    evaluated = program(0.5, None, False)
    assert program(0.5, None, True) == evaluated
    assert program(0.0, None, True) == evaluated
    assert "random_bits" in program(0.5, KEY, True)
    assert "random_bits" not in program(0.0, KEY, True)
    assert "random_bits" not in program(0.5, KEY, False)


def test_members_initialized_under_vmap_equal_separate_ones():
    init, _ = build()
    keys = jax.random.split(KEY, 3)
    together, _ = jax.vmap(init)(keys)
    for member, key in enumerate(keys):
        mine = jax.tree.map(lambda x, member=member: x[member], together)
        chex.assert_trees_all_close(mine, init(key)[0], rtol=1e-6)


def test_with_bfloat16_activations_the_loss_stays_float32():
    _, apply = build(dtype="bfloat16")
    params, _ = build()[0](KEY)
    logits, _ = jax.eval_shape(apply, params, {}, TOKENS[:, :-1])
    assert logits.dtype == jnp.bfloat16
    loss, grads = loss_and_gradient(apply, params)
    chex.assert_trees_all_equal_dtypes(loss, *jax.tree.leaves(grads), jnp.float32(0))
    exact = loss_of(build()[1], params)
    assert abs(loss - exact) < 0.01


def test_rematerialization_keeps_less_and_changes_nothing():
    """`jax.vjp` keeps less; losses and gradients stay the same, with dropout too."""
    kept, results = [], []
    for remat in (False, True):
        _, apply = build(remat=remat, dropout=0.5)
        params = far_from_init()
        loss, backward = jax.vjp(lambda p, apply=apply: loss_of(apply, p, KEY, train=True), params)
        kept.append(sum(leaf.nbytes for leaf in jax.tree.leaves(backward)))
        results.append((loss, backward(jnp.ones(()))))
    assert kept[1] < 0.6 * kept[0]
    chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-7)


def test_a_loss_in_parts_equals_the_whole_one_and_keeps_less():
    init, apply = build(vocab_size=999)
    params, tokens = init(KEY)[0], jnp.tile(TOKENS, (8, 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def losses(params, parts):
        return apply(params, {}, inputs, targets=targets, loss_parts=parts)[0]

    gradient = jax.jit(
        jax.value_and_grad(lambda params, parts: losses(params, parts).mean()), static_argnums=1
    )
    chex.assert_trees_all_close(gradient(params, 6), gradient(params, 1), rtol=1e-4, atol=1e-7)
    logits, _ = apply(params, {}, inputs)
    expected = jax.vmap(next_token_loss)(logits, targets)
    np.testing.assert_allclose(losses(params, 6), expected, rtol=1e-6)
    memory = {
        parts: gradient.lower(params, parts).compile().memory_analysis().temp_size_in_bytes
        for parts in (1, 6)
    }
    assert memory[6] < 0.7 * memory[1]
    with pytest.raises(ValueError, match=r"24 sequences cannot be cut into .*loss_parts=7"):
        losses(params, 7)


@pytest.mark.parametrize("loss_parts", [1, 2])
def test_copies_of_the_embedding_give_the_loss_and_gradient_of_one(loss_parts):
    init, apply = build(dropout=0.5)
    params, tokens = init(KEY)[0], jnp.tile(TOKENS, (4, 1))[:, :-1]

    @jax.value_and_grad
    def of(params, devices=1, **inputs):
        outputs, _ = apply(params, {}, tokens, KEY, train=True, devices=devices, **inputs)
        return jnp.mean(outputs**2)

    inputs = {} if loss_parts == 1 else {"targets": tokens, "loss_parts": loss_parts}
    chex.assert_trees_all_close(
        of(params, devices=3, **inputs), of(params, **inputs), rtol=1e-5, atol=1e-8
    )


def test_both_ways_to_read_a_logit_have_one_gradient():
    logits = jax.random.normal(KEY, (3, 5, 32))
    targets = jax.random.randint(KEY, (3, 5), 0, 32)

    def loss(read):
        return jax.value_and_grad(lambda x: jnp.sum(read(x, targets) ** 2))(logits)

    chex.assert_trees_all_equal(loss(_indexed_logits), loss(_selected_logits))


@pytest.mark.parametrize("train", [False, True])
def test_flash_attention_equals_the_plain_form(train, monkeypatch):
    """The stand-in for cuDNN is JAX's own reference for the same call."""
    fused, calls = jax.nn.dot_product_attention, []

    def stand_in(*arrays, is_causal, implementation):
        calls.append(implementation)
        return fused(*arrays, is_causal=is_causal, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    params, losses = far_from_init(qk_norm=True), []
    for attention in ("plain", "cudnn"):
        changes = {"qk_norm": True, "dtype": "bfloat16", "dropout": 0.5, "attention": attention}
        _, apply = build(**changes)
        losses.append(loss_of(apply, params, KEY if train else None, train))
    assert calls == ([] if train else ["cudnn"] * SMALL.num_layers)
    np.testing.assert_allclose(*losses, rtol=0 if train else 1e-2)


def test_the_loss_is_the_cross_entropy():
    logits = 5 * jax.random.normal(KEY, (3, 4, 7))
    targets = jax.random.randint(KEY, (3, 4), 0, 7)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    chex.assert_trees_all_close(next_token_loss(logits, targets), expected, rtol=1e-6)
    assert next_token_loss(logits.astype(jnp.bfloat16), targets).dtype == jnp.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer of at least 1, got 0"),
        ({"num_layers": -1}, "num_layers must be an integer of at least 1, got -1"),
        ({"context": 1.5}, "context must be an integer of at least 1, got 1.5"),
        ({"width": "64"}, "width must be an integer of at least 1, got '64'"),
        ({"vocab_size": 2**31}, "vocab_size and width must be smaller: .* shape 2147483648 x"),
        ({"context": 10**30}, "context and width must be smaller"),
        ({"width": 2**20, "num_heads": 2**20}, "width must be smaller"),
        ({"num_heads": 2**31}, "width must be a multiple of num_heads=2147483648"),
        ({"num_layers": 2**31}, "num_layers must be at most 1000, got 2147483648"),
        ({"width": 18, "num_heads": 4}, "width must be a multiple of num_heads=4, got 18"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"norm_eps": -1e-5}, "norm_eps must be finite and not negative, got -1e-05"),
        ({"qk_norm_eps": math.nan}, "qk_norm_eps must be finite and not negative, got nan"),
        ({"attention": "flash"}, "attention must be 'plain' or 'cudnn', got 'flash'"),
        (
            {"attention": "cudnn"},
            "attention='cudnn' needs dtype bfloat16 or float16, got 'float32'",
        ),
    ],
)
def test_an_impossible_configuration_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (jnp.zeros((1, 9), int), "tokens must be at most context=8 long, got 9"),
        (jnp.zeros((8,), int), r"tokens must be integers \(batch, length\), got int32 \(8,\)"),
        (jnp.zeros((1, 0), int), r"tokens must be integers \(batch, length\), got int32 \(1, 0\)"),
        (jnp.zeros((0, 8), int), r"tokens must be integers \(batch, length\), got int32 \(0, 8\)"),
        (jnp.zeros((1, 8)), r"tokens must be integers \(batch, length\), got float32 \(1, 8\)"),
    ],
)
def test_unfit_tokens_raise_before_compilation(tokens, message):
    init, apply = build()
    params, _ = init(KEY)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(apply, params, {}, tokens)
