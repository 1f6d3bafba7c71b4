"""Text as `Data` of any size or as a `Corpus`: embedded, any UTF-8 files, tinyshakespeare, C4.

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
import numpy as np

from experiments.core.config import digest
from experiments.core.errors import Failed
from experiments.core.progress import progress
from experiments.data import CORPORA, load_corpus
from experiments.data.corpus import HELDOUT, Corpus
from experiments.data.downloads import download
from experiments.data.files import check_regular, expanded
from experiments.data.loading import MAX_EXAMPLES, Data
from experiments.data.parts import Part, c4_part, utf8_part
from experiments.data.tokenizers import BYTES, TOKENIZERS, Tokenizer, encoded
from experiments.data.tokens import Crops, Splits, Tokens, open_tokens, write_tokens

SPLITS = ("train", "heldout")

TINYSHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
"""The address and SHA-256 of tinyshakespeare."""
C4 = ("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
"""The data set on the Hugging Face hub, and the revision that is read."""
C4_SUFFIX = ".json.gz"
MAX_TOKENS = 2**31 - 1
"""Tokens in a program are numbered in 32 bits."""
SHARD = 150_000_000
"""Tokens of GPT-2 in a training shard of C4, about."""
NUM_SHARDS = 3
"""Training shards of C4 that `read_corpus` reads: 20,000 steps of 64 sequences of 256 take 328
million tokens."""


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
    if context < 1:
        raise ValueError(f"context={context} must be at least 1")
    parts = _token_parts(source, tokenizer, cache, num_shards)
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
            "vocab_size": TOKENIZERS[tokenizer].vocab_size,
            "tokenizer": tokenizer,
            "context": context,
            "num_tokens": num_tokens,
        },
    )


def read_corpus(name: str, *, cache: Path) -> Corpus:
    """Read the corpus of a figure, all of whose tokens a program can hold.

    Args:
      name: A key of `CORPORA`, or a source as in `load_text`. It is read by bytes, unless a
        tokenizer follows after a colon: "c4:gpt2", "my.txt:pairs". For C4 it reads `NUM_SHARDS`
        training shards and a validation shard.
      cache: As in `load_text`.

    Returns:
      Its tokens; the parts of several files follow each other.

    Raises:
      Failed: As in `load_text`; or if it has no tokens to train on or to hold out, or too many.

    >>> corpus = read_corpus("embedded:pairs", cache=Path("unused"))
    >>> corpus.vocab_size, corpus.sha256 == load_corpus("embedded_pairs").sha256
    (4096, True)
    """
    if name in CORPORA:
        return load_corpus(name)
    source, tokenizer = split_name(name)
    parts = _token_parts(source, tokenizer, cache, NUM_SHARDS)
    train, heldout = (_joined([part.tokens[split] for part in parts]) for split in SPLITS)
    if not (len(train) and len(heldout)):
        raise Failed(
            f"corpus={name} has {len(train)} tokens for training and {len(heldout)} held out; "
            "give a longer text, or training shards too"
        )
    if len(train) > MAX_TOKENS:
        raise Failed(
            f"corpus={name} has {len(train)} tokens for training, and a figure takes at most "
            f"{MAX_TOKENS}; name fewer files"
        )
    encoder = tokenizer_of(name)
    return Corpus(
        name=name,
        tokens_train=train,
        tokens_heldout=heldout,
        vocab_size=encoder.vocab_size,
        sha256=parts[0].sha256 if len(parts) == 1 else digest(*(part.sha256 for part in parts)),
        bytes_per_token=encoder.bytes_per_token(heldout),
    )


def tokenizer_of(name: str) -> Tokenizer:
    """Return the tokenizer of a corpus's name, before its text is read."""
    return TOKENIZERS[CORPORA[name] if name in CORPORA else split_name(name)[1]]


def split_name(name: str) -> tuple[str, str]:
    """Return the source and the tokenizer of a corpus's name.

    >>> split_name("c4:gpt2"), split_name("data:old/my.txt")
    (('c4', 'gpt2'), ('data:old/my.txt', 'bytes'))
    """
    source, _, tokenizer = name.rpartition(":")
    return (source, tokenizer) if source and tokenizer in TOKENIZERS else (name, BYTES)


def _joined(pieces: Sequence[Tokens]) -> np.ndarray:
    """Return all ids; those of a single file stay there until they are used."""
    return pieces[0].array if len(pieces) == 1 else np.concatenate([its.array for its in pieces])


def _token_parts(source: str, tokenizer: str, cache: Path, num_shards: int) -> list[Splits]:
    """Return the ids of each file of a source, by split."""
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer={tokenizer!r} is unknown; give one of {', '.join(TOKENIZERS)}")
    encoder = TOKENIZERS[tokenizer]
    if source == "embedded":
        return [encoded(load_corpus(source), encoder)]
    cache = expanded(cache)
    files = _parts(_paths(source, cache, num_shards))
    return [_encoded(part, encoder, cache) for part in files]


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
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise Failed(
            f"C4 could not be downloaded ({reason}); try again, or name shards from another "
            "machine, as in c4/*.json.gz"
        ) from error


DOWNLOADED: dict[str, Callable[[Path, int], list[Path]]] = {
    "tinyshakespeare": _tinyshakespeare,
    "c4": _c4,
}


def _paths(source: str, cache: Path, num_shards: int) -> list[Path]:
    """Return the files that `source` stands for; folders that match a pattern are skipped."""
    if not source:
        raise Failed("the corpus has no name; give a file, or a pattern of files")
    if source in DOWNLOADED:
        return DOWNLOADED[source](cache, num_shards)
    pattern = str(expanded(source))
    paths = [Path(name) for name in sorted({*glob.glob(pattern), *glob.glob(glob.escape(pattern))})]
    if not paths:
        raise Failed(
            f"there is no file {source}; give a file, a pattern of files, or one of "
            f"{', '.join(['embedded', *DOWNLOADED])}; a figure's corpus may also be "
            f"embedded_pairs, or end in a tokenizer: {', '.join(f':{name}' for name in TOKENIZERS)}"
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
