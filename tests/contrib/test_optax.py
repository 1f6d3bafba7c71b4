"""contrib/optax, a contribution to optax: its own tests pass, and it is the library's k-Adam."""

import doctest
import importlib.util
import re
import sys
import types
import unittest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from optax import contrib

import kadam_jax
from contrib.optax import _kadam as module
from tests.kadam_jax.support.scanning import jit_feed

README = (Path(module.__file__).parent / "README.md").read_text()
LINES = dict(re.findall(r"\n## `([^\n`]+)`\n.*?```\w+\n(.*?)```", README, re.DOTALL))
NAME = "optax.contrib._common_test"


def imported(monkeypatch):
    """Put the module where optax has its own; return the names that README's lines import."""
    monkeypatch.setitem(sys.modules, "optax.contrib._kadam", module)
    namespace = {}
    exec(LINES["optax/contrib/__init__.py"], namespace)
    return {name: value for name, value in namespace.items() if not name.startswith("_")}


def common_tests():
    """Return optax's tests of contributed optimizers, with README's lines in them."""
    spec = importlib.util.find_spec(NAME)
    if spec is None:
        return None
    source = Path(spec.origin).read_text()
    for before, line in (
        ("\n_MAIN_OPTIMIZERS_UNDER_TEST = [\n", LINES["optax/contrib/_common_test.py"]),
        ("for uninjectable_hparam in [", "'k', "),
    ):
        assert source.count(before) == 1
        source = source.replace(before, before + line)
    common = types.ModuleType(NAME)
    exec(compile(source, spec.origin, "exec"), vars(common))
    return common


COMMON = common_tests()
EVERY = unittest.TestLoader().getTestCaseNames(COMMON.ContribTest) if COMMON else []
OURS = [
    name
    for name in EVERY
    if "opt_name='kadam'" in getattr(COMMON.ContribTest, name).__x_params_repr__
]


@pytest.mark.skipif(COMMON is None, reason=f"this optax comes without {NAME}")
def test_every_kind_of_optaxs_tests_is_run():
    def kinds(names):
        return {getattr(COMMON.ContribTest, name).__wrapped__.__name__ for name in names}

    assert kinds(OURS) == kinds(EVERY)


@pytest.mark.parametrize("name", OURS)
def test_their_common_tests_pass(name, monkeypatch):
    for public, value in imported(monkeypatch).items():
        monkeypatch.setattr(contrib, public, value, raising=False)
    COMMON.ContribTest(name).debug()  # raises what fails, at once


def test_state_keeps_its_type_under_explicit_sharding():
    """As in optax.contrib._sharding_test, but without compilation and in float16."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    row = LINES["optax/contrib/_sharding_test.py"]
    optimizer = eval(f"{{{row}}}", {"contrib": module})["kadam"]
    with jax.set_mesh(mesh):
        params = jax.device_put(jnp.zeros((2, 8, 4), "float16"), NamedSharding(mesh, P(None, "x")))
        state = optimizer.init(params)
        _, new = optimizer.update(params, state, params)
    assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, new)


def test_the_entries_name_what_is_public(monkeypatch):
    public = {
        name for name, x in vars(module).items() if getattr(x, "__module__", 0) == module.__name__
    }
    public = {name for name in public if not name.startswith("_")}
    assert imported(monkeypatch).keys() == public
    assert LINES["docs/api/contrib.rst"].split() == sorted(public, key=str.lower)


def test_the_docstrings_example_prints_what_it_says(monkeypatch):
    monkeypatch.setattr(contrib, "kadam", module.kadam, raising=False)
    assert doctest.testmod(module) == (0, 9)


def test_its_strategies_are_the_librarys():
    ours, theirs = (
        {name: rule(0.9, 3) for name, rule in rules.items()}
        for rules in (kadam_jax.STRATEGIES, module._STRATEGIES)
    )
    assert theirs == ours


@pytest.fixture(scope="module")
def gradients():
    """Magnitudes from 1e-25 to 1e18, some of which are 0 always and others at first."""
    rng = np.random.default_rng(0)
    real = rng.standard_normal((100, 64)) * 10.0 ** rng.uniform(-25, 18, 64)
    real[:, :3] = real[:50, 3:6] = 0
    return {
        "real": real.astype("float32"),
        "half": real.astype("bfloat16"),
        "complex": (real[:, :32] + 1j * real[:, 32:]).astype("complex64"),
    }


@pytest.mark.parametrize("k", [1, 2, 3])
def test_its_bits_are_those_of_the_library(k, gradients):
    params = jax.tree.map(lambda g: jnp.ones_like(g[0]), gradients)
    ours, theirs = (
        jax.tree.leaves(jit_feed(scale(k), gradients, params))
        for scale in (kadam_jax.scale_by_kadam, module.scale_by_kadam)
    )
    for x, y in zip(ours, theirs, strict=True):
        if x.shape[-1:] == (32,):  # of complex parameters: XLA fuses their arithmetic differently
            np.testing.assert_allclose(y, x, 1e-4)
        else:
            np.testing.assert_array_equal(y, x)


def test_decay_schedule_mask_and_dtype_are_the_librarys(gradients):
    params = {"decays": jnp.linspace(-1, 1, 64), "stays": jnp.ones(64)}
    ours, theirs = (
        jax.tree.leaves(
            jit_feed(
                optimizer(
                    lambda step: 0.1 / (1 + step),
                    3,
                    weight_decay=0.1,
                    mask={"decays": True, "stays": False},
                    mu_dtype=jnp.bfloat16,
                    strategy="root",
                ),
                dict.fromkeys(params, gradients["real"]),
                params,
            )
        )
        for optimizer in (kadam_jax.kadam, module.kadam)
    )
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(y, x)
