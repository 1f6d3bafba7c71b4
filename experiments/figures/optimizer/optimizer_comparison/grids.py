"""The grids over which each optimizer of the comparison is tuned."""

import dataclasses
from dataclasses import dataclass

Setting = tuple[float, float, float]
"""b1, b2 and the decoupled weight decay."""


@dataclass(frozen=True)
class Grid:
    """A grid that combines every learning rate with every setting.

    Attributes:
      rates: Learning rates, rising, as multiples of the configuration's.
      settings: The values of (b1, b2, weight decay); none for k-Adam, whose settings are its
        strategies.
    """

    rates: tuple[float, ...]
    settings: tuple[Setting, ...] = ()


def _ladder(lowest: float) -> tuple[float, ...]:
    return tuple(lowest * 2 ** (step / 2) for step in range(10))


@dataclass(frozen=True)
class Grids:
    """A grid for each optimizer, with the values that its authors and users start from.

    The best known setting of each optimizer has neighbors on both sides along γ, β and λ, down to
    averages as short as those of k-Adam's stages.

    Attributes:
      adamw: Starts from (0.9, 0.999), and from (0.9, 0.95) with λ = 0.1 for language.
      nadamw: The same.
      rmsprop: Without momentum.
      lion: Learning rates a fifth of AdamW's and weight decays five times as large, as its authors
        advise; starts from their (0.9, 0.99), and from (0.95, 0.98) for language.
      muon: b1 is its momentum and that of the Adam used alongside it, starting from 0.95; b2 is
        that Adam's.
      schedule_free_adamw: b1 is the interpolation, starting from 0.9.
      kadam: The learning rates of every k and strategy.
    """

    adamw: Grid = Grid(
        _ladder(1 / 16),
        (
            (0.9, 0.999, 1e-2),
            (0.9, 0.95, 1e-1),
            (0.8, 0.95, 1e-2),
            (0.8, 0.9, 1e-2),
            (0.65, 0.95, 1e-2),
            (0.65, 0.9, 0.0),
            (0.65, 0.9, 1e-2),
            (0.65, 0.9, 1e-1),
            (0.65, 0.8, 1e-2),
            (0.5, 0.9, 1e-2),
        ),
    )
    nadamw: Grid = Grid(
        _ladder(1 / 16),
        (
            (0.9, 0.999, 1e-2),
            (0.9, 0.95, 1e-1),
            (0.9, 0.9, 1e-2),
            (0.8, 0.99, 1e-2),
            (0.8, 0.95, 0.0),
            (0.8, 0.95, 1e-2),
            (0.8, 0.95, 1e-1),
            (0.8, 0.9, 1e-2),
            (0.65, 0.95, 1e-2),
            (0.65, 0.9, 1e-2),
        ),
    )
    rmsprop: Grid = Grid(
        _ladder(1 / 32),
        (
            *((0.0, b2, 1e-2) for b2 in (0.999, 0.95, 0.9, 0.8, 0.6, 0.4)),
            *((0.0, b2, decay) for b2 in (0.8, 0.6) for decay in (0.0, 1e-1)),
        ),
    )
    lion: Grid = Grid(
        _ladder(1 / 80),
        (
            (0.9, 0.99, 5e-2),
            (0.95, 0.98, 5e-2),
            (0.8, 0.9, 5e-2),
            (0.8, 0.8, 5e-2),
            (0.6, 0.9, 5e-2),
            (0.6, 0.8, 0.0),
            (0.6, 0.8, 5e-2),
            (0.6, 0.8, 5e-1),
            (0.6, 0.6, 5e-2),
            (0.4, 0.8, 5e-2),
        ),
    )
    muon: Grid = Grid(
        _ladder(1 / 4),
        (
            (0.95, 0.999, 1e-2),
            (0.95, 0.95, 1e-2),
            (0.9, 0.99, 1e-2),
            (0.9, 0.95, 0.0),
            (0.9, 0.95, 1e-2),
            (0.9, 0.95, 1e-1),
            (0.9, 0.9, 1e-2),
            (0.8, 0.95, 0.0),
            (0.8, 0.95, 1e-2),
            (0.65, 0.95, 1e-2),
        ),
    )
    schedule_free_adamw: Grid = Grid(
        _ladder(1 / 8),
        (
            (0.9, 0.999, 1e-2),
            (0.95, 0.95, 1e-2),
            (0.95, 0.9, 1e-2),
            (0.9, 0.95, 1e-2),
            (0.9, 0.9, 0.0),
            (0.9, 0.9, 1e-2),
            (0.9, 0.9, 1e-1),
            (0.9, 0.8, 1e-2),
            (0.8, 0.95, 1e-2),
            (0.8, 0.9, 1e-2),
        ),
    )
    kadam: Grid = Grid(_ladder(1 / 64))


def first_few(grids: Grids, num_rates: int, num_settings: int) -> Grids:
    """Return the grids with fewer of everything, for a run that only shows that everything works.

    >>> first_few(Grids(), 2, 1).lion.settings
    ((0.9, 0.99, 0.05),)
    """
    return Grids(
        *(
            Grid(grid.rates[:num_rates], grid.settings[:num_settings])
            for grid in (getattr(grids, field.name) for field in dataclasses.fields(grids))
        )
    )
