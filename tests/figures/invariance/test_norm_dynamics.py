"""figures/invariance/norm_dynamics and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.invariance.norm_dynamics import FIGURE
from experiments.figures.invariance.norm_dynamics.run import FORMS, Config, analyze
from experiments.training.tasks import language_task
from kadam_jax.flow import solve_flow
from kadam_jax.invariance import momentum_factor
from models.nanogpt import query_key_slices
from tests.figures.contract import CORPUS, NETWORK, Contract

TINY = dataclasses.replace(NETWORK, num_heads=2, qk_norm=True)
CONFIG = Config(
    model=TINY,
    batch=2,
    num_steps=12,
    num_seeds=2,
    b1s=(0.0, 0.9),
    num_slices=3,
    flow_model=TINY,
    flow_b1s=(0.5, 0.9),
    flow_steps=6,
    substeps=3,
)
TASK = language_task(TINY, CORPUS, CONFIG.batch)


def squared_norms(tree):
    slices = query_key_slices(tree)
    return np.array([np.sum(np.square(np.asarray(x, float))) for x in slices.values()])


@jax.jit
def adamw_step(params, mu, nu, n, run_key, weight_decay):
    """Do step n of AdamW by Algorithm 1, with decay on matrices; return parameters, m, v and u."""
    rate, b1, b2 = CONFIG.learning_rate, CONFIG.b1, CONFIG.b2
    sample_key, dropout_key = jax.random.split(jax.random.fold_in(run_key, n))
    batch = TASK.sample(sample_key)
    g = jax.grad(lambda params: TASK.loss(params, {}, batch, dropout_key)[0])(params)
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, g)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, nu, g)

    def update(m, v):
        root = jnp.sqrt(v / (1 - b2 ** (n + 1)))
        return m / (1 - b1 ** (n + 1)) / jnp.where(root == 0, 1, root)

    u = jax.tree.map(update, mu, nu)
    decay = jax.tree.map(lambda w: weight_decay * w if w.ndim > 1 else 0 * w, params)
    params = jax.tree.map(lambda w, u, d: w - rate * (u + d), params, u, decay)
    return params, mu, nu, u


def by_hand(seed, weight_decay, scale):
    """Return ‖W_n‖² and Theorem 2's sum as printed for all slices, (num_slices, num_steps + 1)."""
    init_key, run_key = jax.random.split(jax.random.key(seed))
    params, _ = jax.jit(TASK.init)(init_key)
    attention = params["blocks"][0]["attention"]
    attention["qkv"] = attention["qkv"].at[:, :2].multiply(scale)
    mu = nu = jax.tree.map(jnp.zeros_like, params)
    norms, sizes, rate = [squared_norms(params)], [], CONFIG.learning_rate
    for n in range(CONFIG.num_steps):
        params, mu, nu, u = adamw_step(params, mu, nu, n, run_key, weight_decay)
        sizes.append(squared_norms(u))
        norms.append(squared_norms(params))
    theorem = [
        norms[0] * np.exp(-2 * weight_decay * n * rate)
        + rate * sum(np.exp(-2 * weight_decay * (n - m) * rate) * rate * sizes[m] for m in range(n))
        for n in range(CONFIG.num_steps + 1)
    ]
    return np.array(norms).T, np.array(theorem).T


@pytest.mark.parametrize("decay", [0, 1])
def test_trajectories_equal_those_of_adam_written_out(data, decay):
    rate = data.weight_decay[decay].item()
    true, theorem = (x[CONFIG.chosen] for x in by_hand(1, rate, 1.0))
    scaled, _ = (x[CONFIG.chosen] for x in by_hand(1, rate, CONFIG.initial_scale))
    at = data.isel(decay=decay, seed=1)
    np.testing.assert_allclose(at.true, true, rtol=1e-4)
    np.testing.assert_allclose(at.theorem, theorem, rtol=1e-4)
    growth = theorem - true[:, :1] * np.exp(-2 * rate * CONFIG.learning_rate * data.step.values)
    np.testing.assert_allclose(at.corrected, theorem + 18 * growth, rtol=1e-4)
    memory = (scaled - true) / (scaled - true)[:, :1]
    np.testing.assert_allclose(at.memory, memory, rtol=1e-3)
    if decay == 0:
        ratio = (true - true[:, :1])[:, -1] / (theorem - true[:, :1])[:, -1]
        np.testing.assert_allclose(data.growth_ratio.sel(b1=0.9)[1], ratio, rtol=2e-2)


def test_the_full_form_is_an_identity_only_without_decay(data):
    error = abs(data.full / data.true - 1).isel(step=slice(1, None)).max(("seed", "slice", "step"))
    assert error[0] < 1e-6 < error[1] < 1e-2


def test_the_flow_equals_that_of_a_single_member(data):
    init_key, sample_key = jax.random.split(jax.random.key(1))
    params, _ = jax.jit(TASK.init)(init_key)
    solution = solve_flow(
        jax.grad(lambda params, batch: TASK.evaluate(params, {}, batch)),
        params,
        learning_rate=CONFIG.learning_rate,
        num_steps=CONFIG.flow_steps,
        substeps=CONFIG.substeps,
        b1=0.9,
        eps=CONFIG.eps,
        batches=jax.vmap(TASK.sample)(jax.random.split(sample_key, CONFIG.flow_steps)),
        method="exponential",
    )
    share = squared_norms(solution.state.params) / squared_norms(params) - 1
    np.testing.assert_allclose(data.flow_share.sel(flow_b1=0.9)[1], share, rtol=1e-2, atol=1e-5)


def test_a_stated_ratio_has_its_interval(data):
    value, low, high = data["growth_ratio_0.9"].values
    assert value == pytest.approx(data.growth_ratio.sel(b1=0.9).median("slice").mean().item())
    assert low < value < high


# Claims

LAPTOP = FIGURE.presets["laptop"]


def made_up(power=1.0, by=1.0, size=1.0, off=0.0, memory=None, spread=0.0, share=1.0, **forms):
    """Make the dataset that would result if ‖W‖² grew by the momentum factor to a power.

    Args:
      power: Exponent of the momentum factor, 0 for Theorem 2.
      by: Multiplies the true growth.
      size: True growth at γ = 0.9 over ‖W_0‖².
      off: Relative error of the full form with decay.
      memory: What is left of ‖W_0‖² at the end; None for what decay leaves.
      spread: Half the range of what differs by seed, relative.
      share: Share of ‖W_0‖² by which ‖W‖² grows on the flow.
      **forms: Predicted over true growth on the flow.
    """
    seeds = (1 + np.linspace(-spread, spread, LAPTOP.num_seeds))[:, None, None]
    ones = np.ones((LAPTOP.num_seeds, 1, LAPTOP.num_slices))
    done = np.arange(1, LAPTOP.num_steps + 1)[:, None] / LAPTOP.num_steps
    decay, scale = LAPTOP.weight_decay, LAPTOP.initial_scale
    points = [(b1, 0, 1) for b1 in LAPTOP.b1s]
    points += [(LAPTOP.b1, 0, scale), (LAPTOP.b1, decay, 1), (LAPTOP.b1, decay, scale)]
    terms = {"decayed": [], "growth": [], "radial": [], "true": []}
    for b1, rate, factor in points:
        left = np.exp(-2 * rate * LAPTOP.learning_rate * LAPTOP.num_steps * done) * ones
        remembered = left if memory is None else np.maximum(memory * seeds, 1e-9) ** done * ones
        growth = size / float(momentum_factor(0.9)) * done * ones
        true = left + by * seeds * float(momentum_factor(b1)) ** power * growth
        terms["decayed"].append(factor**2 * left)
        terms["growth"].append(growth)
        terms["true"].append(true + (factor**2 - 1) * remembered)
        terms["radial"].append(true * (1 + off * seeds) - left - growth)
    discrete = {key: np.array(array) for key, array in terms.items()}
    true = np.full((len(LAPTOP.flow_b1s), LAPTOP.num_seeds, 2), share)
    flow = {"initial": np.ones_like(true), "true": true} | {
        form: forms.get(form, 1.0) * true * seeds[:, 0] for form in FORMS
    }
    return analyze(LAPTOP, discrete, flow)


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 6, "slices": 3},
    strict=(32,),
    diverged=((np.nan, 64), (np.inf, 32)),
    refused=[
        {"model": dataclasses.replace(TINY, qk_norm=False)},
        {"flow_model": dataclasses.replace(TINY, qk_norm=False)},
        {"b1": 0.5},
        {"num_slices": 5},
        {"flow_b1s": (0.0,)},
        {"weight_decay": 0.0},
        {"initial_scale": 1.0},
    ],
    made_up=made_up,
    cases={
        "theorem-2-predicts-the-norm": ({"power": 0}, {}, {"size": 0.16, "spread": 0.3}),
        "theorem-2-predicts-the-growth": (
            {"power": 0},
            {},
            {"power": 0, "by": 1.15, "spread": 0.05},
        ),
        "growth-has-the-momentum-factor": (
            {"spread": 0.1},
            {"by": 0.8},
            {"by": 0.85, "spread": 0.05},
        ),
        "full-form-predicts-the-norm-with-decay": ({}, {"off": 0.05}, {"off": 0.01, "spread": 0.2}),
        "theorem-2-on-the-flow": ({}, {"theorem": 0.1}, {"share": 0.04}),
        "flow-full-form-large-momentum": ({}, {"full": 1.02}, {"full": 1.01, "spread": 0.005}),
        "flow-full-form-small-momentum": ({}, {"full": 1.1}, {"full": 1.05, "spread": 0.01}),
        "flow-velocity-form": ({"full": 2}, {"velocity": 0.9}, {"share": 0.04}),
        "norm-is-a-moving-average-with-decay": (
            {},
            {"memory": 1.0},
            {"memory": 0.5, "spread": 0.1},
        ),
        "norm-is-a-moving-average-without-decay": (
            {"memory": 0.1},
            {},
            {"memory": 0.5, "spread": 0.1},
        ),
    },
)
