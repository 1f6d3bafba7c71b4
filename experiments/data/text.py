"""Text of any size as `Data`: embedded, any UTF-8 files, tinyshakespeare, C4.

A file is turned into tokens once; they stay in a folder of the cache whose name depends on the
file's content.
"""

import glob
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import huggingface_hub

from experiments.core.config import digest
from experiments.core.errors import Failed
from experiments.core.progress import progress
from experiments.data import load_corpus
from experiments.data.corpus import HELDOUT
from experiments.data.downloads import download
from experiments.data.files import check_regular, expanded
from experiments.data.loading import MAX_EXAMPLES, Data
from experiments.data.parts import Part, c4_part, utf8_part
from experiments.data.tokenizers import TOKENIZERS, Tokenizer, encoded
from experiments.data.tokens import Crops, Splits, open_tokens, write_tokens

SPLITS = ("train", "heldout")

TINYSHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
"""The address and SHA-256 of tinyshakespeare."""
C4 = ("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
"""The data set on the Hugging Face hub, and the revision that is read."""
C4_SUFFIX = ".json.gz"


def load_text(
    source: str,
    *,
    tokenizer: str = "bytes",
    context: int = 256,
    cache: Path,
    num_shards: int = 1,
) -> Data:
    """Load a corpus as crops of `context + 1` tokens, int32; targets are inputs shifted by one.

    The held-out part is encoded separately: for the embedded text, it is what `load_corpus` holds
    out; for other texts, the last tenth of the characters, as in nanoGPT; for C4, the validation
    shards among those named, or else every tenth document. The first half of the held-out tokens is
    the validation split and the rest is the test split, in windows that do not overlap as targets;
    tokens at an end that do not fill a window are left out.

    Training crops begin at every token (every n-th if there are more than 2**32 of them).

    Args:
      source: "embedded"; "tinyshakespeare" or "c4", which are downloaded; a file; or a pattern of
        files such as "c4/*.json.gz". Files with this ending are read as shards of C4, all others as
        UTF-8.
      tokenizer: "bytes", "gpt2", or "pairs", the 4,096 byte pairs of `load_corpus`.
      context: Number of tokens that the model sees.
      cache: Folder for downloads and for tokens; "embedded" does not need it.
      num_shards: How many of C4's 1024 training shards are downloaded; each has about 150 million
        GPT-2 tokens and takes 300 MB, and as much again as tokens.

    Returns:
      The data; its `info` has vocab_size, tokenizer, context and num_tokens by split.

    Raises:
      ValueError: If there is no such tokenizer or `context` is below 1.
      Failed: If files are missing, damaged, empty, shorter than the context or not UTF-8, if a
        download fails, or if the cache cannot be written.

    >>> data = load_text("embedded", context=8, cache=Path("unused"))
    >>> data.train[0].shape, data.info["vocab_size"]
    ((9,), 256)
    """
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer={tokenizer!r} is unknown; give one of {', '.join(TOKENIZERS)}")
    if context < 1:
        raise ValueError(f"context={context} must be at least 1")
    encoder = TOKENIZERS[tokenizer]
    if source == "embedded":
        parts = [encoded(load_corpus(source), encoder)]
    else:
        cache = expanded(cache)
        files = _parts(_paths(source, cache, num_shards))
        parts = [_encoded(part, encoder, cache) for part in files]
    train = [part.tokens["train"] for part in parts]
    halves = [part.tokens["heldout"].halves() for part in parts]
    tokens = {"train": train, "validation": [a for a, _ in halves], "test": [b for _, b in halves]}
    num_tokens = {split: sum(map(len, pieces)) for split, pieces in tokens.items()}
    if not any(num_tokens.values()):
        raise Failed(f"{source} is empty")
    stride = -(-num_tokens["train"] // MAX_EXAMPLES)
    crops = {
        split: Crops(pieces, context, stride if split == "train" else context)
        for split, pieces in tokens.items()
    }
    for split in crops:
        if not len(crops[split]):
            raise Failed(
                f"the {split} split of {source} is too short: it has {num_tokens[split]} tokens, "
                f"and context={context} needs {context + 1} in one piece"
            )
    content = json.dumps([tokenizer, context, [part.sha256 for part in parts]])
    return Data(
        name=source,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        train=crops.pop("train"),
        heldout=crops,
        info={
            "vocab_size": encoder.vocab_size,
            "tokenizer": tokenizer,
            "context": context,
            "num_tokens": num_tokens,
        },
    )


def _tinyshakespeare(cache: Path, num_shards: int) -> list[Path]:
    del num_shards
    url, sha256 = TINYSHAKESPEARE
    return [download(url, cache / "tinyshakespeare.txt", sha256=sha256)]


def _c4(cache: Path, num_shards: int) -> list[Path]:
    """Fetch a validation shard and the first training shards, from the hub or from its cache."""
    del cache
    repo, revision = C4
    if not 1 <= num_shards <= 1024:
        raise ValueError(f"num_shards={num_shards} must be from 1 to 1024")
    names = ["en/c4-validation.00000-of-00008.json.gz"]
    names += [f"en/c4-train.{number:05d}-of-01024.json.gz" for number in range(num_shards)]
    fetch = partial(huggingface_hub.hf_hub_download, repo, repo_type="dataset", revision=revision)
    try:
        return [Path(fetch(name)) for name in names]
    except Exception as error:  # the exception's type depends on the HTTP client
        raise Failed(
            f"C4 could not be downloaded ({' '.join(str(error).split())}); try again, or fetch its "
            "shards on another machine and name them, as in c4/*.json.gz"
        ) from error


DOWNLOADED: dict[str, Callable[[Path, int], list[Path]]] = {
    "tinyshakespeare": _tinyshakespeare,
    "c4": _c4,
}


def _paths(source: str, cache: Path, num_shards: int) -> list[Path]:
    """Return the files that `source` stands for; folders that match a pattern are skipped."""
    if source in DOWNLOADED:
        return DOWNLOADED[source](cache, num_shards)
    pattern = str(expanded(source))
    paths = [Path(name) for name in sorted({*glob.glob(pattern), *glob.glob(glob.escape(pattern))})]
    if not paths:
        raise Failed(
            f"there is no file {source}; give a file, a pattern of files, or one of "
            f"embedded, {', '.join(DOWNLOADED)}"
        )
    files = [path for path in paths if not path.is_dir()] or paths
    for path in files:
        check_regular(path)
    return files


def _parts(paths: Sequence[Path]) -> list[Part]:
    """Return parts by their files' suffix; C4's validation shards, if any, are held out."""
    shards = [path.name for path in paths if path.name.endswith(C4_SUFFIX)]
    validation = [name for name in shards if "validation" in name]
    every = {name: 1 if name in validation else 0 for name in shards}
    if not validation:
        every = dict.fromkeys(shards, HELDOUT.denominator)
    return [
        c4_part(path, every[path.name]) if path.name in every else utf8_part(path) for path in paths
    ]


def _encoded(part: Part, tokenizer: Tokenizer, cache: Path) -> Splits:
    """Return the part's tokens from the cache, and put them there if needed."""
    identity = tokenizer.name + tokenizer.version()
    folder = cache / f"{part.name}-{tokenizer.name}-{digest(part.key, identity)}"
    if not folder.exists():
        with progress(f"{part.name} to tokens, MB", len(SPLITS) * part.num_blocks) as advance:
            blocks = {split: part.ids(tokenizer, split, advance) for split in SPLITS}
            write_tokens(folder, blocks, tokenizer.vocab_size)
    return open_tokens(folder)
