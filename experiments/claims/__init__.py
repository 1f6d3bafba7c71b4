"""The paper's statements, one row each: statistic, rule and its reason, correction.

One file for each figure that decides some, named like the figure and found by walking the package;
its `CLAIMS` are in the order in which the report has them. A file is committed before its figure's
first result.
"""

import importlib
import pkgutil

from experiments.judging import Claim

CLAIMS: tuple[Claim, ...] = tuple(
    claim
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
    for claim in importlib.import_module(f"{__name__}.{name}").CLAIMS
)
"""All claims; those about one figure stand together."""
