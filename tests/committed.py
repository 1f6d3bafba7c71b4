"""What the results that come with the code say, judged once for all tests."""

import functools

from experiments.core.store import read_dataset
from experiments.figures import discover
from experiments.reproduce.pipeline import COMMITTED

PATHS = sorted(COMMITTED.glob("*/*.nc"))


@functools.cache
def attrs_and_judgments(path):
    """The attributes of a dataset and its figure's judgments by claim."""
    data = read_dataset(path)
    judgments = discover()[path.stem].judge(data)
    return data.attrs, {judgment.claim.id: judgment for judgment in judgments}


def judgment(claim, preset):
    """The judgment of a claim by the dataset of a preset, "" for laptop."""
    path = COMMITTED / (preset or "laptop") / f"{claim.figure}.nc"
    return attrs_and_judgments(path)[1][claim.id]
