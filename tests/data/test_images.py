"""Images: the binary release byte by byte, fixed splits, normalization and augmentation."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments.core.errors import Failed
from experiments.data import images
from experiments.data.images import (
    CIFAR10,
    CROP,
    FOLDER,
    RECORD,
    TEST_FILE,
    TRAIN_FILES,
    Images,
    channel_statistics,
    flip_and_crop,
    load_images,
)
from experiments.data.loading import training_batches

NAMES = (*TRAIN_FILES, TEST_FILE)
RECORDS = 10
"""Number of records in each file here."""


@pytest.fixture
def contents(monkeypatch):
    """Small versions of the release's files: content by name."""
    monkeypatch.setattr(images, "RECORDS", RECORDS)
    records = np.random.default_rng(0).integers(0, 256, (6, RECORDS, RECORD)).astype(np.uint8)
    records[:, :, 0] %= 10
    return {name: file.tobytes() for name, file in zip(NAMES, records, strict=True)}


def write_folder(contents, folder):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(contents, path, prefix=f"{FOLDER}/"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def load(path):
    return load_images(str(path), cache=Path("unused"))


def pixels_of(source):
    """Return the pixels before `Images` normalized them."""
    return np.rint(source[np.arange(len(source))]["image"] * source.std + source.mean)


def test_a_record_is_a_label_and_three_planes_row_by_row(contents, tmp_path):
    data = load(write_folder(contents, tmp_path / "a"))
    record = np.frombuffer(contents[TRAIN_FILES[1]], np.uint8)[3 * RECORD : 4 * RECORD]
    example = data.train[RECORDS + 3]
    assert example["image"].dtype == np.float32
    assert example["label"].dtype == np.int32
    assert example["label"] == record[0]
    pixels = np.rint(example["image"] * data.train.std + data.train.mean)
    for row, column, channel in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (31, 30, 2)]:
        assert pixels[row, column, channel] == record[1 + channel * 1024 + row * 32 + column]


def test_validation_is_the_last_tenth_of_the_training_files(contents, tmp_path):
    data = load(write_folder(contents, tmp_path / "a"))
    joined = [pixels_of(source) for source in (data.train, *data.heldout.values())]
    assert list(data.heldout) == ["validation", "test"]
    assert [len(pixels) for pixels in joined] == [45, 5, 10]
    records = np.frombuffer(b"".join(contents.values()), np.uint8).reshape(-1, RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(np.concatenate(joined), np.moveaxis(planes, 1, -1))
    assert data.info["num_classes"] == 10


def test_folder_parent_and_archive_are_the_same_data(contents, tmp_path):
    write_folder(contents, tmp_path / "a" / FOLDER)
    paths = [tmp_path / "a" / FOLDER, tmp_path / "a", write_archive(contents, tmp_path / "a.tgz")]
    assert len({load(path).sha256 for path in paths}) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_byte_makes_different_data(contents, tmp_path, place):
    before = load(write_folder(contents, tmp_path / "a")).sha256
    changed = bytearray(contents[TEST_FILE])
    changed[place] = (changed[place] + 1) % 10
    contents[TEST_FILE] = bytes(changed)
    assert load(write_folder(contents, tmp_path / "b")).sha256 != before


def test_cifar10_is_downloaded_into_the_cache_with_its_checksum(contents, tmp_path, monkeypatch):
    def download(url, path, *, sha256):
        assert (url, sha256) == CIFAR10
        assert path == tmp_path / "cifar-10-binary.tar.gz"
        return write_archive(contents, path)

    monkeypatch.setattr(images, "download", download)
    data = load_images("cifar10", cache=tmp_path)
    assert data.sha256 == load(write_folder(contents, tmp_path / "a")).sha256


FAULTS = {
    "ends within a record": (
        lambda content: content[: 4 * RECORD + 5],
        r"ends at byte 12297, in record 4; CIFAR-10's 10 records have 30730 bytes",
    ),
    "lacks whole records": (
        lambda content: content[: 9 * RECORD],
        r"ends at byte 27657, in record 9; CIFAR-10's 10 records have 30730 bytes",
    ),
    "is empty": (lambda content: b"", "ends at byte 0, in record 0"),
    "is longer": (
        lambda content: content + content,
        "continues at byte 30730, where CIFAR-10's 10 records end",
    ),
    "has another label": (
        lambda content: content[: 2 * RECORD] + bytes([10]) + content[2 * RECORD + 1 :],
        "has label 10 at byte 6146; CIFAR-10's are 0 to 9",
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", [TRAIN_FILES[2], TEST_FILE])
@pytest.mark.parametrize(("damage", "message"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_file_is_refused_by_name_and_byte(
    contents, tmp_path, damage, message, name, packed
):
    contents[name] = damage(contents[name])
    write, path = (write_archive, "a.tgz") if packed else (write_folder, "a")
    with pytest.raises(Failed, match=f"{path}: {name} {message}"):
        load(write(contents, tmp_path / path))


@pytest.mark.parametrize(("write", "path"), [(write_archive, "a.tgz"), (write_folder, "a")])
def test_missing_files_are_named(contents, tmp_path, write, path):
    del contents[TRAIN_FILES[0]], contents[TEST_FILE]
    with pytest.raises(Failed, match=r"a\S* has no data_batch_1.bin, test_batch.bin; .*has"):
        load(write(contents, tmp_path / path))


def test_a_missing_path_is_named_with_the_remedy(tmp_path):
    with pytest.raises(Failed, match=r"cifra10 cannot be read: No such file.*give the folder"):
        load(tmp_path / "cifra10")


def test_a_damaged_archive_is_refused(contents, tmp_path):
    whole = write_archive(contents, tmp_path / "a.tgz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for damaged in (whole[: len(whole) // 2], bytes(flipped), b"", b"no archive at all"):
        (tmp_path / "b.tgz").write_bytes(damaged)
        with pytest.raises(Failed, match=r"b\.tgz is damaged"):
            load(tmp_path / "b.tgz")


@pytest.mark.parametrize("prefix", ["../../", "/tmp/", f"{FOLDER}/"])
def test_no_file_of_an_archive_is_written(contents, tmp_path, prefix):
    (tmp_path / "deep").mkdir()
    path = write_archive(contents, tmp_path / "deep" / "a.tgz", prefix)
    load(path)
    assert list(tmp_path.rglob("*")) == [path.parent, path]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_links_and_folders_in_an_archive_are_not_files(contents, tmp_path, kind):
    del contents[TEST_FILE]
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(RECORDS * RECORD))
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(TEST_FILE)
        link.type, link.linkname = kind, str(secret)
        archive.addfile(link)
    with pytest.raises(Failed, match=r"a\.tgz has no test_batch.bin"):
        load(tmp_path / "a.tgz")


def test_normalization_is_that_of_the_training_split(contents, tmp_path):
    data = load(write_folder(contents, tmp_path / "a"))
    batch = data.train[np.arange(len(data.train))]["image"]
    np.testing.assert_allclose(batch.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(batch.std((0, 1, 2)), 1, rtol=1e-5)
    contents[TEST_FILE] = bytes(RECORDS * RECORD)
    darker = load(write_folder(contents, tmp_path / "b"))
    np.testing.assert_array_equal(darker.train[0]["image"], data.train[0]["image"])
    assert darker.info == data.info


def test_statistics_are_those_of_float64():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3)).astype(np.uint8)
    mean, std = channel_statistics(pixels)
    np.testing.assert_allclose(mean, pixels.astype(float).mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, pixels.astype(float).std((0, 1, 2)), rtol=1e-6)


def test_the_digits_are_enlarged_gray_and_split_in_order():
    from sklearn.datasets import load_digits

    data = load_images("digits", cache=Path("unused"))
    splits = (data.train, *data.heldout.values())
    pixels = np.concatenate([source.pixels for source in splits])
    labels = np.concatenate([source.labels for source in splits])
    original = load_digits()
    assert [len(source) for source in splits] == [1297, 200, 300]
    np.testing.assert_array_equal(labels, original.target)
    expected = np.rint(original.images * 255 / 16)
    for row in range(4):
        for column in range(4):
            for channel in range(3):
                enlarged = pixels[:, row::4, column::4, channel]
                np.testing.assert_array_equal(enlarged, expected)
    for source in splits:
        assert np.bincount(source.labels).min() > 0.08 * len(source)
    assert data.sha256 == load_images("digits", cache=Path("unused")).sha256


def test_a_pickled_source_does_not_carry_the_other_splits(contents, tmp_path):
    data = load(write_folder(contents, tmp_path / "a"))
    pickled = pickle.dumps(data.heldout["validation"])
    assert len(pickled) < 1.2 * data.heldout["validation"].pixels.nbytes
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again[2]["image"], data.heldout["validation"][2]["image"])


def test_augmentation_takes_windows_of_an_image_or_its_mirror():
    image = np.random.default_rng(0).normal(size=(3, 4, 1)).astype(np.float32)
    windows = {}
    for mirrored in (False, True):
        bordered = np.zeros((3 + 2 * CROP, 4 + 2 * CROP, 1), np.float32)
        bordered[CROP:-CROP, CROP:-CROP] = image[:, ::-1] if mirrored else image
        for top in range(2 * CROP + 1):
            for left in range(2 * CROP + 1):
                window = bordered[top : top + 3, left : left + 4]
                windows.setdefault(window.tobytes(), []).append((mirrored, top, left))
    generator = np.random.default_rng(1)
    seen = set()
    for _ in range(4000):
        example = flip_and_crop({"image": image, "label": np.int32(3)}, generator)
        assert example["label"] == 3
        assert example["image"].dtype == np.float32
        seen.add(example["image"].tobytes())
    assert seen == set(windows)


def test_augmentation_depends_on_seed_example_and_epoch():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    statistics = channel_statistics(pixels)
    source = Images(pixels, np.arange(6, dtype=np.int32), *statistics)
    data = images.Data("six", "0", source, {}, {"num_classes": 10})

    def epochs(seed, batch_size=6, **options):
        batches = training_batches(
            data, batch_size=batch_size, seed=seed, augment=flip_and_crop, **options
        )
        drawn = [next(batches) for _ in range(18 // batch_size)]
        batches.close()
        labels = np.concatenate([batch["label"] for batch in drawn])
        pixels = np.concatenate([batch["image"] for batch in drawn])
        by_label = [
            pixels[start : start + 6][np.argsort(labels[start : start + 6])]
            for start in range(0, 18, 6)
        ]
        return np.stack(by_label)  # (epochs, examples, 32, 32, 3)

    first = epochs(seed=0)
    np.testing.assert_array_equal(first, epochs(seed=0))
    np.testing.assert_array_equal(first, epochs(seed=0, batch_size=2))
    assert np.any(first != epochs(seed=1))
    plain = source[np.arange(6)]["image"]
    for one, other in [(first[0], first[1]), (first[1], first[2]), (first[0], plain)]:
        assert np.any(one != other, axis=(1, 2, 3)).mean() > 0.5
