"""The paper's statements, one row each: statistic, rule and its reason, correction.

One file for each figure that decides some, named like the figure and found by walking the package;
its `CLAIMS` are in the order in which the report has them. A file is committed before its figure's
first result; every dataset has the commit of the table that it was computed under and a digest of
its rules.
"""

import importlib
import pkgutil
from pathlib import Path

from experiments.config import digest
from experiments.judging import Claim

FOLDER = Path(__file__).parent

CLAIMS: tuple[Claim, ...] = tuple(
    claim
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
    if not name.startswith("_")
    for claim in importlib.import_module(f"{__name__}.{name}").CLAIMS
)
"""All claims; those about one figure stand together."""


def rules_digest(figure: str) -> str:
    """Of a figure's rules and their words; not of statistics' code, corrections or its minimum."""
    rules = [
        repr((claim.id, claim.statement, claim.quantity, claim.accept, claim.reason, claim.minimum))
        for claim in CLAIMS
        if claim.figure == figure
    ]
    return digest(*rules)
