"""A sweep that one process runs when it calls `results`, and several when they run this module."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from kadam_jax.members import points, sweep

LARGE = np.arange(2**18, dtype=np.float32)
"""One MiB, which each process places on its own devices."""


def results(devices):
    """Losses of a perceptron, normal numbers and places in `LARGE`, for five members with a key."""

    def fn(member):
        first, second, third = jax.random.split(member["key"], 3)
        inputs = jax.random.normal(first, (16, 4))
        weights = jax.random.normal(second, (8, 4)), jax.random.normal(third, (1, 8))

        def loss_fn(weights):
            outputs = jax.vmap(lambda x: weights[1] @ jax.nn.relu(weights[0] @ x))(inputs)
            return ((outputs - 1) ** 2).mean()

        def step(weights, _):
            loss, grads = jax.value_and_grad(loss_fn)(weights)
            return jax.tree.map(lambda w, g: w - member["rate"] * g, weights, grads), loss

        place = jax.random.randint(member["key"], (), 0, len(LARGE))
        losses = jax.lax.scan(step, weights, length=10)[1]
        return losses, jax.random.normal(member["key"]), jnp.asarray(LARGE)[place]

    members = points(rate=[1e-3, 3e-3, 1e-2, 3e-2, 0.1], key=jax.random.split(jax.random.key(0), 5))
    mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
    return sweep(fn, members, chunk_size=3, mesh=mesh)


if __name__ == "__main__":
    folder, _, address, _, num, _, index = sys.argv[1:]
    jax.distributed.initialize(address, int(num), int(index))
    np.savez(f"{folder}/{index}.npz", *results(jax.devices()))
    try:
        mesh = jax.make_mesh((int(num),), ("x",))
        sweep(lambda member: member["x"], points(x=[0, int(index)]), mesh=mesh)
    except ValueError as error:
        print(error)
