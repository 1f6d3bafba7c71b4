"""The paper says nothing about its architecture that a rule could judge."""

from experiments.core.claims import Claim

CLAIMS: tuple[Claim, ...] = ()
