"""The page's answers: a rule from verdicts, so that none differs from the claims."""

import dataclasses
import itertools
import math

import pytest

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, Claim, Judgment
from experiments.core.stats import NOTHING, Estimate
from experiments.figures import discover
from experiments.reproduce.answers import NOT_RUN, answer, holding, measured, more_observations

VERDICTS = SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE


def judgments(verdicts, **fields):
    return [
        Judgment(
            Claim(f"c{i}", "f", "§1", "x", "x", lambda d: NOTHING, (2, 3), "why", **fields),
            Estimate(i + 0.5, i + 0.25, i + 0.75, 5),
            verdict,
            "",
        )
        for i, verdict in enumerate(verdicts)
    ]


PHRASES = {f"c{i}": f"claim {i} measures {{}} units" for i in range(3)}


@pytest.mark.parametrize("verdicts", [*itertools.product(VERDICTS, repeat=3)])
def test_an_answer_follows_from_the_verdicts(verdicts):
    sentence, quoted = answer(judgments(verdicts), PHRASES)
    yes, no, undecided = map(verdicts.count, VERDICTS)
    lead = sentence.partition(":")[0]
    assert (lead == "Yes") == (yes == 3)
    assert (lead == "In part") == (0 < yes < 3)
    assert (lead == "No") == (yes == 0 and no >= 2)
    assert (lead == "Not decided at this scale") == (yes == 0 and undecided >= 2)
    kinds = [found.verdict for found in quoted]
    leading = SUPPORTED if yes else NOT_SUPPORTED if no > 1 else INCONCLUSIVE
    limit = [NOT_SUPPORTED if no else INCONCLUSIVE] if 0 < yes < 3 else []
    assert kinds == [leading] * min(2, verdicts.count(leading)) + limit
    for found in quoted:
        i = int(found.claim.id[1:])
        assert f"claim {i} measures {i}.50 [{i}.25, {i}.75] units (needed: 2 to 3)" in sentence
    assert (sentence.count("."), sentence[-1]) == (1 + 3 * len(quoted), ".")


def test_an_answer_quotes_one_figures_claims():
    found = [
        dataclasses.replace(judgment, claim=dataclasses.replace(judgment.claim, figure=figure))
        for judgment, figure in zip(judgments([NOT_SUPPORTED] * 3), "fgf", strict=True)
    ]
    assert answer(found, PHRASES).quoted == (found[0], found[2])


def test_figures_that_were_not_run_answer_nothing():
    missing = [
        Judgment(found.claim, NOTHING, INCONCLUSIVE, NOT_RUN) for found in judgments(VERDICTS)
    ]
    assert answer(missing, PHRASES) == ("Not run.", ())
    assert answer([], {}) == ("", ())


def test_a_claim_without_a_phrase_counts_but_is_not_quoted():
    found = judgments([SUPPORTED, SUPPORTED, NOT_SUPPORTED])
    sentence, quoted = answer(found, PHRASES | {"c0": "", "c2": ""})
    assert sentence.startswith("In part: claim 1 ")
    assert quoted == (found[1],)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-1.0, 3.0, "about 4 times"),
        (-math.inf, 3.0, "edge of a grid"),
        (-math.inf, math.inf, "edge of a grid"),
        (-8.95, 3.0, "about 99 times"),
        (-9.0, 3.0, "more than a hundred"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_open_claim_says_how_much_would_decide_it(low, high, said, sign):
    (found,) = judgments([INCONCLUSIVE])
    accept, ends = sorted([0.0, sign * math.inf]), sorted([sign * low, sign * high])
    claim = dataclasses.replace(found.claim, accept=tuple(accept))
    assert said in more_observations(Judgment(claim, Estimate(sign, *ends, 5), INCONCLUSIVE, ""))


def test_a_value_between_open_ends_keeps_its_digits():
    assert measured(Estimate(2.345, -math.inf, math.inf, 5)) == "2.345 [\N{MINUS SIGN}∞, ∞]"


@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_holds_never_contradicts_the_verdict(verdict):
    with_correction, plain = (
        judgments([verdict], **fields)[0] for fields in ({"correction": "It is 4."}, {})
    )
    assert (holding(plain) == "As stated.") == (verdict == SUPPORTED)
    assert (holding(with_correction) == "It is 4.") == (verdict == NOT_SUPPORTED)


def test_every_phrase_has_one_number_and_fits_in_a_sentence():
    for figure in discover().values():
        for phrase in filter(None, figure.decided_by.values()):
            assert phrase.count("{}") == 1
            assert phrase.format("1 [0, 2]").isprintable()
            assert not phrase.endswith(".")
