"""The figure's claims."""

from experiments.core.claims import Claim

CLAIMS: tuple[Claim, ...] = ()
