"""experiments/results.py and config.py: what lies on disk, and what identifies it."""

import subprocess

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from experiments import results
from experiments.config import (
    TrainingConfig,
    difference,
    digest,
    override,
    shortfalls,
    to_json,
)
from experiments.figures.stability_plane import Config as PlaneConfig
from experiments.results import ChunkStore, DamagedFile, atomic, read_dataset, write_dataset


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a"
    path.write_text("old")

    def write():
        with atomic(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def dataset():
    return xr.Dataset(
        {"loss": (("member", "step"), np.arange(6.0, dtype=np.float32).reshape(2, 3))},
        coords={"seed": ("member", [0, 1]), "stable": ("member", [True, False])},
        attrs={"config": '{"β": 1}', "wall_seconds": 1.5},
    )


def test_a_dataset_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "data.nc"
    write_dataset(path, dataset())
    back = read_dataset(path)
    xr.testing.assert_identical(back, dataset())
    assert back.loss.dtype == np.float32
    assert files(tmp_path) == ["new/data.nc"]


def flip(content, place, mask=1):
    """`content` with bits of one byte turned."""
    changed = bytearray(content)
    changed[place] ^= mask
    return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"x" * 99,
        lambda content: content[:-32],  # netCDF of another program
        *(lambda content, at=at: flip(content, int(at * len(content))) for at in (0.0, 0.4, 0.99)),
    ],
)
def test_a_damaged_dataset_is_named(tmp_path, damage):
    path = tmp_path / "data.nc"
    write_dataset(path, dataset())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFile, match=r"data\.nc is damaged"):
        read_dataset(path)


def test_chunks_come_back_and_others_are_left_alone(tmp_path):
    mine, other = (ChunkStore(tmp_path / "chunks" / key) for key in ("a", "b"))
    arrays = {"loss": np.ones((2, 3)), "max_update": np.zeros(2, np.float32)}
    mine.save("adam", 0, arrays)
    other.save("adam", 0, {"loss": np.zeros(1)})
    loaded = mine.load("adam", 0)
    assert {name: array.dtype for name, array in loaded.items()} == {
        name: array.dtype for name, array in arrays.items()
    }
    np.testing.assert_array_equal(loaded["loss"], arrays["loss"])
    assert mine.load("adam", 2) is None
    assert mine.load("kadam", 0) is None
    assert mine.count() == 1
    mine.clear()
    assert files(tmp_path) == ["chunks/b/adam-000000.npz", "chunks/b/identity.json"]
    other.clear()
    assert not (tmp_path / "chunks").exists()


@pytest.mark.parametrize("where", [0.3, 0.5, "cut"])
def test_a_damaged_chunk_is_named(tmp_path, where):
    store = ChunkStore(tmp_path)
    store.save("adam", 0, {"loss": np.linspace(0, 1, 1000)})
    path = store.path("adam", 0)
    content = bytearray(path.read_bytes())
    if where == "cut":
        content = content[:-100]
    else:
        content[int(len(content) * where)] ^= 255
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"adam-000000\.npz is damaged"):
        store.load("adam", 0)


@pytest.mark.parametrize("mask", [1, 255])
def test_no_changed_byte_of_a_chunk_gives_other_numbers(tmp_path, mask):
    store = ChunkStore(tmp_path)
    store.save("adam", 0, {"loss": np.linspace(0, 1, 3)})
    path = store.path("adam", 0)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(flip(content, place, mask))
        try:
            loaded = store.load("adam", 0)
        except DamagedFile:
            continue
        for array in loaded.values():
            np.testing.assert_array_equal(array, np.linspace(0, 1, 3))


def test_the_commit_says_when_files_differ_from_it(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True)

    assert results.git_commit(tmp_path) == "unknown"
    git("init", "-q")
    assert results.git_commit(tmp_path) == "unknown"
    git("commit", "-q", "--allow-empty", "-m", "t")
    clean = results.git_commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("")
    assert results.git_commit(tmp_path) == clean + "+dirty"
    git("add", "file")
    git("commit", "-q", "-m", "t")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("")
    git("add", "folder")
    git("commit", "-q", "-m", "t")
    changed = results.last_change(tmp_path / "folder")
    (tmp_path / "file").write_text("else")  # outside of the folder
    git("commit", "-q", "-a", "-m", "t")
    (tmp_path / "file").write_text("more")
    assert results.last_change(tmp_path / "folder") == changed
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/file").write_text("")  # of something else, inside of this repository
    assert results.git_commit(tmp_path / "copy") == "unknown"
    assert results.last_change(tmp_path / "copy") == "unknown"
    assert results.git_commit(tmp_path) != changed


@given(
    learning_rate=st.floats(0, 1e30),
    num_steps=st.integers(1, 10**9),
    width=st.sampled_from([6, 384]),
    qk_norm=st.booleans(),
)
def test_the_difference_of_two_configurations_leads_from_one_to_the_other(
    learning_rate, num_steps, width, qk_norm
):
    base = TrainingConfig()
    settings = [f"learning_rate={learning_rate}", f"num_steps={num_steps}"]
    config = override(base, [*settings, f"model.width={width}", f"model.qk_norm={qk_norm}"])
    assert (config.learning_rate, config.num_steps) == (learning_rate, num_steps)
    assert (config.model.width, config.model.qk_norm) == (width, qk_norm)
    assert override(base, difference(config, base)) == config
    assert difference(base, base) == []


def test_tuples_are_overridden_by_commas_or_spaces():
    config = override(PlaneConfig(), ["levels=-1,0,1e-30", "normals_through=0.5 0.5, 0.1 0.2"])
    assert config.levels == (-1.0, 0.0, 1e-30)
    assert config.normals_through == ((0.5, 0.5), (0.1, 0.2))
    assert override(PlaneConfig(), difference(config, PlaneConfig())) == config


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("learning_rat=1", ["learning_rat", "learning-rate"]),
        ("model.widht=1", ["model.widht", "model.width"]),
        ("num_steps=2.5", ["num-steps", "2.5"]),
        ("eps=tiny", ["eps", "tiny"]),
        ("eps=-1", ["eps must be finite and not negative"]),
        ("eps=nan", ["eps must be finite"]),
        ("num_seeds=0", ["num_seeds must be at least 1"]),
        ("model.width=7", ["width", "num_heads"]),
        ("corpus=c5", ["corpus", "embedded"]),
    ],
)
def test_a_bad_assignment_is_refused_with_the_field_and_the_remedy(capsys, assignment, words):
    with pytest.raises(SystemExit) as stop:
        override(TrainingConfig(), [assignment])
    assert stop.value.code == 2
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in message for word in words), message


def test_json_and_digest_identify_a_configuration():
    assert to_json(TrainingConfig()) == to_json(TrainingConfig())
    assert to_json(TrainingConfig()) != to_json(TrainingConfig(eps=1e-8))
    assert digest("ab", "c") != digest("a", "bc")


def test_shortfalls_name_what_is_too_small():
    minimum = {"num_steps": 400, "model.width": 64}
    assert shortfalls(TrainingConfig(), minimum) == ()
    assert shortfalls(TrainingConfig(num_steps=20), minimum) == ("num_steps=20 < 400",)
