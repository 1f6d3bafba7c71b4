"""What each optimizer is tuned over where optimizers are compared."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Setting = tuple[float, float, float]
"""b1, b2 and the decoupled weight decay."""


@dataclass(frozen=True)
class Grid:
    """Every learning rate is combined with every setting.

    Attributes:
      rates: Learning rates, rising, as multiples of the configuration's.
      settings: (b1, b2, weight decay) of each; none for k-Adam, whose settings are its strategies.
    """

    rates: tuple[float, ...]
    settings: tuple[Setting, ...] = ()


def _ladder(lowest: float, num: int = 10) -> tuple[float, ...]:
    return tuple(lowest * 2 ** (step / 2) for step in range(num))


def _crossed(
    decays: Sequence[tuple[float, float]], weight_decays: Sequence[float]
) -> tuple[Setting, ...]:
    return tuple((*pair, decay) for pair, decay in itertools.product(decays, weight_decays))


WEIGHT_DECAYS = (1e-2, 1e-1)
_ADAM = (
    # optax's and PyTorch's, then what is usual for language models.
    (0.9, 0.999, 1e-2),
    (0.9, 0.999, 1e-1),
    (0.9, 0.99, 1e-1),
    (0.9, 0.95, 1e-1),
    (0.95, 0.95, 1e-1),
    # Down to the shorter averages that k-Adam's stages have.
    (0.8, 0.99, 1e-1),
    (0.8, 0.95, 1e-2),
    (0.8, 0.95, 1e-1),
    (0.65, 0.95, 1e-1),
    (0.5, 0.95, 1e-1),
)


@dataclass(frozen=True)
class Grids:
    """One for each optimizer, around what its authors and its users start from.

    Attributes:
      adamw: From (0.9, 0.999).
      nadamw: AdamW's.
      rmsprop: Without momentum: five values of b2.
      lion: Learning rates a fifth of AdamW's, weight decays five times as large, as its authors
        advise; from their (0.9, 0.99), and (0.95, 0.98) for language.
      muon: b1 is its momentum and that of the Adam beside it, from 0.95; b2 is Adam's.
      schedule_free_adamw: b1 is the interpolation, from 0.9.
      kadam: The learning rates of every k and strategy.
    """

    adamw: Grid = Grid(_ladder(1 / 16), _ADAM)
    nadamw: Grid = Grid(_ladder(1 / 16), _ADAM)
    rmsprop: Grid = Grid(
        _ladder(1 / 32),
        _crossed([(0.0, b2) for b2 in (0.999, 0.99, 0.95, 0.9, 0.8)], WEIGHT_DECAYS),
    )
    lion: Grid = Grid(
        _ladder(1 / 80),
        _crossed(
            [(0.9, 0.99), (0.95, 0.98), (0.8, 0.9), (0.6, 0.8), (0.4, 0.6)],
            [5 * decay for decay in WEIGHT_DECAYS],
        ),
    )
    muon: Grid = Grid(
        _ladder(1 / 4),
        _crossed(
            [(0.95, 0.999), (0.95, 0.95), (0.9, 0.95), (0.8, 0.95), (0.65, 0.95)], WEIGHT_DECAYS
        ),
    )
    schedule_free_adamw: Grid = Grid(
        _ladder(1 / 8),
        _crossed(
            [(0.9, 0.999), (0.9, 0.95), (0.95, 0.99), (0.8, 0.95), (0.65, 0.95)], WEIGHT_DECAYS
        ),
    )
    kadam: Grid = Grid(_ladder(1 / 64))


def first_few(grids: Grids, num_rates: int, num_settings: int) -> Grids:
    """The grids with fewer of everything, for a run that shows that everything runs.

    >>> first_few(Grids(), 2, 1).lion.settings
    ((0.9, 0.99, 0.05),)
    """
    return Grids(
        *(
            Grid(grid.rates[:num_rates], grid.settings[:num_settings])
            for grid in (getattr(grids, field.name) for field in dataclasses.fields(grids))
        )
    )
