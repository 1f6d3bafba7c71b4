"""The paper says nothing of its architecture that a rule could judge."""

from experiments.core.claims import Claim

CLAIMS: tuple[Claim, ...] = ()
