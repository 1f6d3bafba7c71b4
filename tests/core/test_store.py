"""core/store.py and config.py: results on disk, and what identifies them."""

import importlib.metadata
import io
import os
import re
import resource
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.core import plot as plotting
from experiments.core import store as results
from experiments.core.config import difference, digest, override, shortfalls, to_json
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import (
    SCHEMA,
    SHA256_BYTES,
    ChunkStore,
    DamagedFile,
    atomic,
    labeled,
    named,
    read_dataset,
    versions,
    write_checked,
    write_dataset,
)
from experiments.figures.stability.stability_plane.run import Config as PlaneConfig
from experiments.training.config import TrainingConfig
from kadam_jax.members import points


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_only_the_old_file(tmp_path, error):
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


def test_a_dataset_comes_back_unchanged(tmp_path):
    path = tmp_path / "new" / "data.nc"
    write_dataset(path, dataset())
    back = read_dataset(str(path))
    xr.testing.assert_identical(back, dataset())
    assert back.loss.dtype == np.float32
    assert files(tmp_path) == ["new/data.nc"]


def flip(content, place, mask=1):
    """Return `content` with bits of one byte flipped."""
    changed = bytearray(content)
    changed[place] ^= mask
    return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"x" * 99,
        lambda content: content[:-32],  # netCDF from another program
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
    assert files(tmp_path) == ["chunks/b/adam-000000.npz"]
    other.clear()
    assert not (tmp_path / "chunks").exists()


def damaged(content):
    """Yield `content` with a bit of each byte flipped in turn, then cut at some places."""
    yield from (flip(content, at, 1 << at % 8) for at in range(len(content)))
    yield from (content[:end] for end in range(0, len(content), 13))


def test_every_flipped_bit_and_truncated_chunk_is_detected(tmp_path):
    store = ChunkStore(tmp_path)
    store.save("adam", 0, {"a": np.linspace(0, 1, 3), "b": np.float32(1)})
    path = store.path("adam", 0)
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DamagedFile, match=r"adam-000000\.npz is damaged"):
            store.load("adam", 0)


def test_a_sweep_computes_a_damaged_chunk_again_and_says_so(tmp_path, capsys):
    store = ChunkStore(tmp_path)
    members = points(x=np.arange(4.0, dtype=np.float32))

    def sweep():
        fn = lambda member: {"a": 2 * member["x"], "b": jnp.full(3, member["x"])}  # noqa: E731
        return Run(None, None, store).sweep("adam", fn, members, chunk_size=2)

    whole, path = sweep(), store.path("adam", 2)
    content = path.read_bytes()
    directory = content.rfind(b"PK\5\6")
    archive = io.BytesIO()
    np.savez(archive, [object()], allow_pickle=True)
    for spoil in (
        lambda: path.write_bytes(flip(content, directory + 10, 3)),  # one array fewer
        lambda: path.write_bytes(b""),
        lambda: write_checked(path, b"no archive"),
        lambda: write_checked(path, archive.getvalue()),
        lambda: (path.unlink(), os.mkfifo(path)),
        lambda: (path.unlink(), path.symlink_to("/dev/zero")),
    ):
        spoil()
        again = sweep()
        assert f"{path} is damaged" in capsys.readouterr().err
        assert whole.keys() == again.keys()
        np.testing.assert_array_equal(whole["b"], again["b"])


# Content that another version or another program may have written with our checksum.
DEEP = "[" * 10**5 + "]" * 10**5
ODD = {
    "config": ["[]", "no JSON", DEEP, 3, np.arange(3)],
    "key_parts": ["[]", '{"a": [1]}', DEEP, '{"a": ' * 300 + "1" + "}" * 300],
    "overrides": ["{}", "[1]", "7", DEEP],
    "wall_seconds": ["soon", np.nan, np.inf, np.arange(2.0)],
    "schema": [2, "1", np.arange(2), np.nan],
    "date": [1.5, np.array([1, 2]), ["a", "b"]],
}


@pytest.mark.parametrize(("name", "value"), [(n, x) for n, every in ODD.items() for x in every])
def test_an_odd_attribute_with_a_valid_checksum_is_named(tmp_path, name, value):
    path = tmp_path / "data.nc"
    odd = dataset().assign_attrs(schema=SCHEMA).assign_attrs({name: value})
    write_checked(path, bytes(odd.to_netcdf(engine="h5netcdf")))
    with pytest.raises(DamagedFile, match=f"{path} .*({name}|damaged)"):
        read_dataset(path)


def test_bytes_with_a_valid_checksum_may_not_be_a_dataset(tmp_path):
    path = tmp_path / "data.nc"
    write_dataset(path, dataset())
    content = path.read_bytes()[:-SHA256_BYTES]
    for odd in (b"", b"CDF\1", content[:2000], flip(content, 8, 255)):
        write_checked(path, odd)
        with pytest.raises(DamagedFile, match=r"data\.nc is damaged"):
            read_dataset(path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_reading_does_not_wait_for_what_is_not_a_file(tmp_path, make):
    path = tmp_path / "data.nc"
    make(path)
    with pytest.raises(DamagedFile, match="it is not a file"):
        read_dataset(path)


@pytest.mark.parametrize("write", [lambda p: write_dataset(p, dataset()), lambda p: save(p)])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, write):
    path = tmp_path / "figure.png"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # Python ignores its signal
    try:
        with pytest.raises(OSError, match=re.escape(f"'{path}'")):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [
        ("figure.png", "old")
    ]


def save(path):
    plotting.save(plotting.canvas(2, 2)[0], path.with_suffix(""))


def test_leftovers_go_but_files_being_written_stay(tmp_path):
    path, left = tmp_path / "a.png", tmp_path / ".a.png.x1y2z3"
    other = tmp_path / ".a.pngs.x1y2z3"
    for folder in (left, other):
        folder.mkdir()
        (folder / "a.png").write_text("half")
    with atomic(path) as first:
        first.write_text("first")
        with atomic(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
        assert not left.exists()
    assert path.read_text() == "first"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".a.pngs.x1y2z3", "a.png"]


def test_a_copy_that_is_not_installed_has_a_version(monkeypatch):
    installed, version = versions(), importlib.metadata.version

    def absent(name):
        if name.replace("_", "-") == "kadam-jax":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert versions() == installed


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
    changed = results.last_change(tmp_path / "folder", "file")
    (tmp_path / "file").write_text("else")  # outside the folder
    git("commit", "-q", "-a", "-m", "t")
    (tmp_path / "file").write_text("more")
    assert results.last_change(tmp_path / "folder", "file") == changed
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/file").write_text("")  # of something else, inside this repository
    assert results.git_commit(tmp_path / "copy") == "unknown"
    assert results.last_change(tmp_path / "copy", "file") == "unknown"
    assert results.git_commit(tmp_path) != changed


@settings(deadline=None)  # tyro's first parser is slow
@given(
    learning_rate=st.floats(0, 1e30),
    num_steps=st.integers(1, 10**9),
    width=st.sampled_from([6, 384]),
    qk_norm=st.booleans(),
)
def test_a_difference_turns_one_configuration_into_the_other(
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
        ("num_steps=2.5", ["num_steps", "2.5"]),
        ("eps=tiny", ["eps", "tiny"]),
        ("eps=-1", ["eps must be finite and not negative"]),
        ("eps=nan", ["eps must be finite"]),
        ("num_seeds=0", ["num_seeds must be at least 1"]),
        ("model.width=7", ["width", "num_heads"]),
        ("model.attention=fast", ["attention", "plain"]),
    ],
)
def test_a_bad_assignment_is_refused_with_the_remedy(capsys, assignment, words):
    with pytest.raises(SystemExit) as stop:
        override(TrainingConfig(), [assignment])
    assert stop.value.code == 2
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in message for word in words), message


@pytest.mark.parametrize("assignment", ["learning_rat=1", "model.widht=1"])
def test_an_unknown_field_is_named_with_a_similar_one(assignment):
    with pytest.raises(
        ConfigError, match=f"^--set '{assignment}': .* mean (learning_rate|model.width)"
    ):
        override(TrainingConfig(), [assignment])


def test_json_and_digest_identify_a_configuration():
    assert to_json(TrainingConfig()) == to_json(TrainingConfig())
    assert to_json(TrainingConfig()) != to_json(TrainingConfig(eps=1e-8))
    assert digest("ab", "c") != digest("a", "bc")


def test_shortfalls_name_what_is_too_small():
    minimum = {"num_steps": 400, "model.width": 64}
    assert shortfalls(TrainingConfig(), minimum) == ()
    assert shortfalls(TrainingConfig(num_steps=20), minimum) == ("num_steps=20 < 400",)


def test_usual_coordinates_are_labeled_and_others_need_a_label():
    data = xr.Dataset({"x": named(("step", [1.0]), "what is measured", "nat")}, {"step": [0]})
    found = labeled(data)
    assert (found.x.long_name, found.step.units) == ("what is measured", "step")
    with pytest.raises(KeyError, match="unknown"):
        labeled(data.assign(unknown=0.0))
