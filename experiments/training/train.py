"""One run as pure functions: in one piece for a figure's sweep, in blocks for the host's loop.

Both derive everything random in step n from the member's seed and n, so a member is the same, up to
rounding, wherever it is in a sweep and however its steps are divided into calls and its devices are
laid out. There is rounding because XLA may order sums differently in each of these programs.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from experiments.training.meshes import COPIES, sharding, state_shardings
from experiments.training.tasks import Task
from models.parts import interleaved


class TrainResult(NamedTuple):
    """One member's run."""

    loss: jax.Array
    """(num_steps,): the loss of each step's batch, before the step."""
    read: Any
    """`read(opt_state)` after each step; leaves have a leading axis of num_steps."""
    params: Any
    """Parameters at the end."""
    state: Any
    """The model's own state at the end."""
    opt_state: Any
    """The optimizer's state at the end."""


def train_member(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    seed: jax.Array | int,
    num_steps: int,
    stop: jax.Array | int | None = None,
    read: Callable[[Any], Any] = lambda opt_state: (),
) -> TrainResult:
    """Train one member inside the caller's compiled program, without a trip to the host.

    Initial weights come from `seed`, and the batch and the dropout of step n from `seed` and n, so
    that a member is the same, up to rounding, wherever it is in a sweep and however long it runs.

    Args:
      task: The task that is trained.
      optimizer: May be built from tracers.
      seed: May be traced.
      num_steps: Number of steps; static.
      stop: Steps from this one on are skipped and recorded as NaN. It may be traced, so that
        members of one program can differ in length; this saves time for members that run in turn,
        but not for those side by side. None skips nothing.
      read: Picks what is recorded from the optimizer's state after every step.

    Returns:
      A `TrainResult`; XLA removes the computation of whatever the caller does not use.

    >>> from experiments.training.tasks import Task
    >>> slope = Task(
    ...     init=lambda key: (jnp.zeros(()), ()), sample=lambda key: 3.0,
    ...     loss=lambda w, state, batch, key: (batch * w, state))
    >>> train_member(slope, optax.sgd(1.0), seed=0, num_steps=3).loss.tolist()
    [0.0, -9.0, -18.0]
    """
    init_key, run_key = jax.random.split(jax.random.key(seed))
    params, state = task.init(init_key)

    def step(carry, index):
        sample_key, dropout_key = jax.random.split(jax.random.fold_in(run_key, index))
        batch = task.sample(sample_key)
        carry, loss, _ = _update(task.loss, optimizer, carry, batch, dropout_key)
        return carry, (loss, read(carry[-1]))

    def step_or_skip(carry, index):
        def skip(carry, index):
            records = jax.eval_shape(step, carry, index)[1]
            return carry, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), records)

        return jax.lax.cond(index < stop, step, skip, carry, index)

    start = (params, state, optimizer.init(params))
    body = step if stop is None else step_or_skip
    end, (losses, readings) = jax.lax.scan(body, start, jnp.arange(num_steps))
    return TrainResult(losses, readings, *end)


class TrainState(NamedTuple):
    """All that steps change; outside a member's program, leaves have a leading member axis."""

    params: Any
    """Parameters."""
    model_state: Any
    """The model's own state, such as BatchNorm's averages."""
    opt_state: Any
    """The optimizer's state."""


class Programs(NamedTuple):
    """The compiled programs of a run; states and results have a leading member axis."""

    template: TrainState
    """Shapes, dtypes and shardings of the state."""
    start: Callable[[], TrainState]
    """`start() -> state`, before the first step."""
    steps: Callable[[TrainState, Any, ArrayLike], tuple[TrainState, dict[str, jax.Array]]]
    """`steps(state, batches, done) -> (state, records)`: one step for each of the batches, whose
    leaves are (num_steps, batch, ...), after `done` steps; the given state is consumed. Records are
    (num_members, num_steps): the loss before the step and the global norm of its gradient."""
    metrics: Callable[[TrainState, Any, jax.Array], dict[str, jax.Array]]
    """`metrics(state, batch, weights) -> sums`, (num_members,), as in `Task.metrics`."""
    lower: Callable[[Any], jax.stages.Lowered]
    """`lower(batches)`: the lowered `steps`, from arrays or their shapes with shardings; the mesh's
    devices may be mere descriptions (`jax.experimental.topologies`), for compiling elsewhere."""


def member_programs(
    task: Task,
    make_optimizer: Callable[[Mapping[str, jax.Array]], optax.GradientTransformation],
    members: Mapping[str, ArrayLike],
    mesh: Mesh,
    *,
    evaluated: Callable[[Any, Any], Any] = lambda opt_state, params: params,
    members_at_once: int | None = None,
    shard_above: int | None = None,
    microbatches: int = 1,
) -> Programs:
    """Return programs that train all members on the same batches.

    Args:
      task: The task that is learned.
      make_optimizer: Called with a member's values, which are traced.
      members: Columns of equal length, including "seed".
      mesh: From `training.meshes.make_mesh`. Each batch is sharded over "data" and computed as if
        it were whole, including BatchNorm and dropout.
      evaluated: `evaluated(opt_state, params)` returns the parameters that are measured.
      members_at_once: How many members a device computes side by side; None for one on CPUs and all
        elsewhere.
      shard_above: As in `training.meshes.MeshConfig`.
      microbatches: Equal parts of a batch whose gradients are computed in turn and averaged; must
        divide each device's part. The model's state and dropout see one part after another.

    Returns:
      The programs; each compiles when it is first called, `steps` once for each number of steps.
    """
    if members_at_once is None and mesh.devices.flat[0].platform == "cpu":
        members_at_once = 1  # one at a time compiles faster there
    columns = {name: _column(column) for name, column in members.items()}
    if task.loss_on is not None:
        task = task._replace(loss=task.loss_on(mesh.shape["data"]))

    def start_one(member):
        init_key, _ = jax.random.split(jax.random.key(member["seed"]))
        params, model_state = task.init(init_key)
        return TrainState(params, model_state, make_optimizer(member).init(params))

    def steps_one(member_and_state, batches, done):
        member, state = member_and_state
        optimizer = make_optimizer(member)
        _, run_key = jax.random.split(jax.random.key(member["seed"]))

        def step(state, batch_and_index):
            batch, index = batch_and_index
            _, dropout_key = jax.random.split(jax.random.fold_in(run_key, index))
            carry, loss, grads = _update(
                task.loss, optimizer, state, batch, dropout_key, microbatches
            )
            return TrainState(*carry), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

        indices = done + jnp.arange(len(jax.tree.leaves(batches)[0]), dtype=jnp.int32)
        return jax.lax.scan(step, state, (batches, indices))

    def metrics_one(state, batch, weights):
        params = evaluated(state.opt_state, state.params)
        return task.metrics(params, state.model_state, batch, weights)

    def each(fn):
        return _over_members(fn, mesh, members_at_once)

    abstract = jax.eval_shape(each(start_one), columns)
    shardings = state_shardings(mesh, abstract, shard_above)
    if shard_above is not None:
        task = _gathered(task, mesh, shardings.params)
    everywhere = sharding(mesh)
    placed = functools.cache(lambda: jax.device_put(columns, everywhere))
    start = jax.jit(each(start_one), out_shardings=shardings)
    steps = jax.jit(
        lambda columns, state, *shared: each(steps_one)((columns, state), *shared),
        donate_argnums=1,
        out_shardings=(shardings, everywhere),
    )
    template = jax.tree.map(_described, abstract, shardings)

    def lower(batches):
        described = jax.tree.map(lambda column: _described(column, everywhere), columns)
        return steps.lower(described, template, batches, np.int32(0))

    return Programs(
        template=template,
        start=lambda: start(placed()),
        steps=lambda state, batches, done: steps(placed(), state, batches, done),
        metrics=jax.jit(each(metrics_one), out_shardings=everywhere),
        lower=lower,
    )


def _described(leaf: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def _gathered(task: Task, mesh: Mesh, shardings: Any) -> Task:
    """Gather sharded parameters before the model uses them, and scatter their gradients.

    Otherwise the compiler may leave a matrix in parts and move activations, which are larger.
    """

    def here(where):
        # Inside shard_map some of the mesh's axes are manual, as the context's mesh says.
        context = jax.sharding.get_abstract_mesh()
        return where if context.empty else NamedSharding(context, where.spec)

    def whole(params):
        return jax.lax.with_sharding_constraint(params, here(sharding(mesh)))

    def part(leaf, where):
        if COPIES in where.mesh.shape and mesh.shape["members"] > 1:
            return leaf  # the context has no such axis; the compiler chooses where it goes
        of_member = NamedSharding(where.mesh, PartitionSpec(*where.spec[1:]))
        return jax.lax.with_sharding_constraint(leaf, here(of_member))

    def scattered(_, grads):
        return (jax.tree.map(part, grads, shardings),)

    gathered = jax.custom_vjp(whole)
    gathered.defvjp(lambda params: (whole(params), None), scattered)
    return task._replace(
        loss=lambda params, *rest: task.loss(gathered(params), *rest),
        metrics=lambda params, *rest: task.metrics(gathered(params), *rest),
    )


def _column(values: ArrayLike) -> jax.Array:
    """Return a hyperparameter of all members, in float32 as parameters are, even with x64."""
    return jnp.asarray(values, jnp.float32 if np.asarray(values).dtype.kind == "f" else None)


def _update(loss_fn, optimizer, carry, batch, key, microbatches=1):
    """Take a step from the carry (params, state, opt_state): return the next, loss and gradient.

    The next carry has the dtypes of the given one, whatever those of the hyperparameters are.
    """
    params, state, opt_state = carry
    gradient = jax.value_and_grad(loss_fn, has_aux=True)
    if microbatches > 1:
        gradient = _accumulated(gradient, microbatches)
    (loss, state), grads = gradient(params, state, batch, key)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    after = optax.apply_updates(params, updates), state, opt_state
    return jax.tree.map(_as_before, after, tuple(carry)), loss, grads


def _accumulated(gradient: Callable[..., Any], microbatches: int) -> Callable[..., Any]:
    """Average a gradient, (params, state, batch, key) -> ((loss, state), grads), over parts."""

    def averaged(params, state, batch, key):
        def part(carry, part_and_index):
            state, total = carry
            examples, index = part_and_index
            (loss, state), grads = gradient(params, state, examples, jax.random.fold_in(key, index))
            return (state, jax.tree.map(jnp.add, total, (loss, grads))), None

        parts = interleaved(batch, microbatches)
        indices = jnp.arange(microbatches)
        (loss, _), grads = jax.eval_shape(
            gradient, params, state, jax.tree.map(lambda leaf: leaf[0], parts), key
        )
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (loss, grads))
        (state, total), _ = jax.lax.scan(part, (state, zero), (parts, indices))
        loss, grads = jax.tree.map(lambda x: x / microbatches, total)
        return (loss, state), grads

    return averaged


def _as_before(after: ArrayLike, before: ArrayLike) -> ArrayLike:
    """Cast the value to the dtype it had before; random keys have no other."""
    dtype = jnp.result_type(before)
    return after if jnp.result_type(after) == dtype else jnp.asarray(after, dtype)


def _over_members(fn: Callable[..., Any], mesh: Mesh, at_once: int | None) -> Callable[..., Any]:
    """Apply `fn(member, *shared)` to all members, (num_members, ...), each device to its share."""

    def on_one_device(members, *shared):
        num_members = len(jax.tree.leaves(members)[0])
        if num_members == 1:
            results = fn(jax.tree.map(lambda leaf: leaf[0], members), *shared)
            return jax.tree.map(lambda leaf: leaf[None], results)
        if at_once is None or at_once >= num_members:
            return jax.vmap(lambda member: fn(member, *shared))(members)
        batch_size = None if at_once == 1 else at_once
        return jax.lax.map(lambda member: fn(member, *shared), members, batch_size=batch_size)

    if mesh.shape["members"] == 1:
        return on_one_device
    by_member = PartitionSpec("members")

    def sharded(members, *shared):
        # The compiler manages the data axis and sees whole batches inside.
        run = jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=(by_member, *[PartitionSpec()] * len(shared)),
            out_specs=by_member,
            axis_names={"members"},
            check_vma=False,
        )
        return run(members, *shared)

    return sharded
