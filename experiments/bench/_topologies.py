"""Devices that are only described, for which JAX can compile."""

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

import jax
from jax.experimental import topologies

from experiments.core.errors import ConfigError, Failed

MEMORY = {"v5e": 16, "v5p": 95, "v6e": 32, "h100": 80}
"""GiB on a chip."""
PLUGINS = {"tpu": "libtpu", "cuda": "jax_cuda12_plugin"}


def kind_of(name: str) -> str:
    """Return the kind of chip of a topology.

    >>> kind_of("v5e:2x2")
    'v5e'
    """
    return name.partition(":")[0]


def platform_of(name: str, field: str = "topologies") -> str:
    """Return the platform of a topology, and check its name.

    Args:
      name: "v5e:2x2" is a slice of TPUs, "h100:8" is a number of GPUs.
      field: The configuration's field that has it.

    Raises:
      ConfigError: If the name has another form.

    >>> platform_of("v5e:2x2"), platform_of("h100:8")
    ('tpu', 'cuda')
    """
    kind, shape = kind_of(name), name.partition(":")[2]
    if kind not in MEMORY or not re.fullmatch(r"\d+" if kind == "h100" else r"\d+(x\d+)+", shape):
        raise ConfigError(
            f"{field} must be like v5e:2x2, v5p:8x8x16 or h100:8, of {', '.join(MEMORY)}; "
            f"got {name!r}"
        )
    return "cuda" if kind == "h100" else "tpu"


def missing(name: str, gpu_target: Path | None) -> str:
    """Return what is missing to compile for a topology, or "".

    Args:
      name: As for `platform_of`.
      gpu_target: As for `devices`.
    """
    platform = platform_of(name)
    if importlib.util.find_spec(PLUGINS[platform]) is None:
        return f"{PLUGINS[platform]}, of the version that this jax's extra installs"
    return (
        "gpu_target, a file with the GPU's facts" if platform == "cuda" and not gpu_target else ""
    )


def devices(name: str, gpu_target: Path | None) -> Sequence[jax.Device]:
    """Return the devices of a topology.

    Args:
      name: As for `platform_of`.
      gpu_target: A GPU's facts in XLA's text format, one of `xla/backends/gpu/target_config/specs`
        in XLA's repository; needed for GPUs only.

    Raises:
      Failed: If the topology does not exist.
    """
    # By default the compiler looks for a pod around it, and lets no other process load it.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
    try:
        if platform_of(name) == "tpu":
            return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        count = int(name.partition(":")[2])
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=name,
            target_config=gpu_target.read_text(),
            topology=f"{-(-count // 8)}x1x{min(count, 8)}",
        ).devices
    except (jax.errors.JaxRuntimeError, RuntimeError, OSError) as error:
        raise Failed(f"no compiler for topology {name}: {error}") from error
