"""The compiled programs of a training configuration, on devices that are here or only described."""

from collections.abc import Sequence

import jax

from experiments.core.errors import ConfigError
from experiments.train.config import TrainConfig, optimizer_of, sweep_members
from experiments.training.meshes import make_mesh
from experiments.training.optimizers import OPTIMIZERS
from experiments.training.tasks import Task
from experiments.training.train import Programs, member_programs


def programs_of(
    config: TrainConfig, task: Task, sweep: Sequence[str], devices: Sequence[jax.Device]
) -> tuple[Programs, list[dict[str, float]], jax.sharding.Mesh]:
    """Return the programs of all members, what distinguishes each, and the mesh.

    Args:
      config: The configuration.
      task: The task that is learned.
      sweep: As in `sweep_members`.
      devices: The devices of all processes.

    Raises:
      ConfigError: If mesh, members, batch and microbatches don't fit together.
    """
    members, labels = sweep_members(config, sweep)
    mesh = make_mesh(config.mesh, devices, len(members["seed"]), config.batch_size)
    if config.batch_size % (parts := config.parts * mesh.shape["data"]):
        raise ConfigError(
            f"batch_size={config.batch_size} must be a multiple of {parts}: {config.parts} parts "
            f"(microbatches={config.microbatches}, and loss_parts for text) x mesh.data="
            f"{mesh.shape['data']}"
        )
    programs = member_programs(
        task,
        lambda member: optimizer_of(config, member),
        members,
        mesh,
        evaluated=OPTIMIZERS[config.optimizer].evaluated,
        members_at_once=config.members_at_once,
        shard_above=config.mesh.shard_above,
        microbatches=config.microbatches,
    )
    return programs, labels, mesh
