"""What the tests of every figure's claims share: made-up data in, a verdict out."""

import dataclasses

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.figures import discover

CLAIMS = tuple(claim for figure in discover().values() for claim in figure.claims)
"""All claims; those about one figure stand together."""


def verdicts(claims, cases):
    """(claim, data, verdict) of every case; a claim without an interval has no third."""
    return [
        (claim, given, verdict)
        for claim in claims
        for given, verdict in zip(
            cases[claim.id], (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE), strict=False
        )
    ]


def assert_follows(claim, figure, config, data, verdict):
    """The verdict at the scale of `config`, and none with a seed less than the figure needs."""
    judged = judge(claim, data.assign_attrs(config=to_json(config)), figure.minimum)
    assert judged.verdict == verdict, judged.estimate
    few = dataclasses.replace(config, num_seeds=4)
    judged = judge(claim, data.assign_attrs(config=to_json(few)), figure.minimum)
    assert judged.verdict == INCONCLUSIVE
    assert "num_seeds=4 < 5" in judged.remark
