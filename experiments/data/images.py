"""Images of 32 x 32 pixels as `Data`: scikit-learn's digits, and CIFAR-10's binary release."""

import contextlib
import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from experiments.core.errors import Failed
from experiments.data.downloads import download
from experiments.data.files import check_regular, expanded
from experiments.data.loading import Data

NUM_CLASSES = 10
SIDE = 32

CIFAR10 = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
"""The binary release's address and SHA-256."""
FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
RECORDS = 10_000
"""Bytes of a record: the label, then the red, the green and the blue plane, row by row."""
RECORD = 1 + 3 * SIDE * SIDE
CROP = 4
"""Largest number of pixels by which an augmented image is moved."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images in memory with their labels, normalized when they are read.

    Attributes:
      pixels: (num_images, 32, 32, 3), uint8.
      labels: (num_images,), int32.
      mean: The number subtracted from each channel's pixels, (3,), float32.
      std: The number that they are then divided by, (3,), float32.
    """

    pixels: np.ndarray
    labels: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        """Return NumPy arrays, or JAX arrays if pixels and labels are."""
        pixels = self.pixels[index].astype(np.float32)
        channels = (1,) * (pixels.ndim - 1) + (-1,)
        mean, std = self.mean.reshape(channels), self.std.reshape(channels)
        return {"image": (pixels - mean) / std, "label": self.labels[index, ...]}


def load_images(source: str, *, cache: Path) -> Data:
    """Load images with labels 0 to 9; the training split's channels have mean 0 and variance 1.

    The 1797 digits stay in their original order, which keeps most writers apart: the last 300 are
    the test split and the 200 before them the validation split. The last 5000 of CIFAR-10's 50,000
    training images are the validation split.

    Args:
      source: "digits", scikit-learn's 8 x 8 pixels, each enlarged to 4 x 4; "cifar10", which is
        downloaded; or the binary release's folder or .tar.gz file.
      cache: Folder for downloads; the digits do not need one.

    Returns:
      The data, with examples {"image": (32, 32, 3) float32, "label": () int32}; its `info` has
      num_classes and the training split's mean and std of each channel for pixels from 0 to 255.

    Raises:
      Failed: If a file is missing, truncated, oversized or damaged, or has a label above 9, or
        if the download fails.

    >>> data = load_images("digits", cache=Path("unused"))
    >>> len(data.train), {name: len(split) for name, split in data.heldout.items()}
    (1297, {'validation': 200, 'test': 300})
    >>> batch = data.train[np.arange(5)]
    >>> batch["image"].shape, batch["label"].tolist()
    ((5, 32, 32, 3), [0, 1, 2, 3, 4])
    """
    if source == "digits":
        pixels, labels = digits()
        return _split(source, pixels, labels, num_validation=200, num_test=300)
    path = expanded(source)
    if source == "cifar10":
        name = PurePosixPath(CIFAR10[0]).name
        path = download(CIFAR10[0], expanded(cache) / name, sha256=CIFAR10[1])
    pixels, labels = cifar10(path)
    return _split(
        source, pixels, labels, num_validation=RECORDS * len(TRAIN_FILES) // 10, num_test=RECORDS
    )


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Load scikit-learn's digits: pixels (1797, 32, 32, 3), uint8, and labels, int32."""
    from sklearn.datasets import load_digits  # takes a second, which text should not wait for

    gray = load_digits()
    pixels = np.rint(gray.images * (255 / 16)).astype(np.uint8)
    factor = SIDE // pixels.shape[1]
    enlarged = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    return np.stack([enlarged] * 3, axis=-1), gray.target.astype(np.int32)


def cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Load CIFAR-10's training images, then its test images, from the binary release.

    Nothing is unpacked onto the disk, and only pixels and labels are read.

    Args:
      path: The release's folder, that folder's parent, or its .tar.gz file.

    Returns:
      Pixels (60000, 32, 32, 3), uint8, and labels (60000,), int32.

    Raises:
      Failed: If a file is missing, truncated, oversized or damaged, or has a label above 9.
    """
    read = _read_folder if path.is_dir() else _read_archive
    try:
        contents = read(path)
    except OSError as error:
        raise Failed(
            f"{path} cannot be read: {error.strerror or error}; give the folder {FOLDER} of "
            "CIFAR-10's binary release, or its .tar.gz file"
        ) from error
    names = (*TRAIN_FILES, TEST_FILE)
    if missing := [name for name in names if name not in contents]:
        raise Failed(
            f"{path} has no {', '.join(missing)}; CIFAR-10's binary release has {', '.join(names)}"
        )
    records = np.concatenate([_checked(f"{path}: {name}", contents[name]) for name in names])
    planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].astype(np.int32)


def _read_folder(path: Path) -> dict[str, bytes]:
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    contents = {}
    for name in (*TRAIN_FILES, TEST_FILE):
        check_regular(folder / name)
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            contents[name] = _read_just_beyond(file)
    return contents


def _read_archive(path: Path) -> dict[str, bytes]:
    contents = {}
    check_regular(path)
    try:
        with gzip.open(path) as unpacked:
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    file = archive.extractfile(member) if member.isfile() else None
                    if file and name in (*TRAIN_FILES, TEST_FILE):
                        contents[name] = _read_just_beyond(file)
            while unpacked.read(2**20):  # gzip's checksum comes last
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Failed(f"{path} is damaged, or not a .tar.gz file: {error}") from error
    return contents


def _read_just_beyond(file: IO[bytes]) -> bytes:
    """Read a file's content, or as much of it as shows that it is too long."""
    return file.read(RECORDS * RECORD + 1)


def _checked(name: str, content: bytes) -> np.ndarray:
    """Return a file's records, (RECORDS, RECORD), uint8."""
    size = RECORDS * RECORD
    if len(content) > size:
        raise Failed(f"{name} continues at byte {size}, where CIFAR-10's {RECORDS} records end")
    if len(content) < size:
        raise Failed(
            f"{name} ends at byte {len(content)}, in record {len(content) // RECORD}; CIFAR-10's "
            f"{RECORDS} records have {size} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD)
    if (wrong := np.flatnonzero(records[:, 0] >= NUM_CLASSES)).size:
        raise Failed(
            f"{name} has label {records[wrong[0], 0]} at byte {wrong[0] * RECORD}; CIFAR-10's are "
            f"0 to {NUM_CLASSES - 1}"
        )
    return records


def _split(
    name: str, pixels: np.ndarray, labels: np.ndarray, *, num_validation: int, num_test: int
) -> Data:
    """Hold out the last images."""
    hashed = hashlib.sha256(pixels)
    hashed.update(labels)
    ends = len(labels) - num_validation - num_test, len(labels) - num_test, len(labels)
    mean, std = channel_statistics(pixels[: ends[0]])
    train, validation, test = (
        Images(pixels[start:stop], labels[start:stop], mean, std)
        for start, stop in zip((0, *ends), ends, strict=False)
    )
    return Data(
        name=name,
        sha256=hashed.hexdigest(),
        train=train,
        heldout={"validation": validation, "test": test},
        info={"num_classes": NUM_CLASSES, "mean": mean.tolist(), "std": std.tolist()},
    )


def channel_statistics(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of each channel from exact sums.

    Args:
      pixels: (num_images, height, width, channels), uint8.

    Returns:
      Both (channels,), float32; the standard deviation of a constant channel is set to 1.

    >>> channel_statistics(np.array([[[[1, 7]], [[3, 7]]]], np.uint8))
    (array([2., 7.], dtype=float32), array([1., 1.], dtype=float32))
    """
    number = pixels[..., 0].size
    mean = pixels.sum((0, 1, 2), dtype=np.int64) / number
    # 255² fits into 16 bits.
    mean_square = np.square(pixels, dtype=np.uint16).sum((0, 1, 2), dtype=np.int64) / number
    std = np.sqrt(mean_square - mean**2)
    return mean.astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)


def flip_and_crop(
    example: Mapping[str, np.ndarray], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Mirror an image with probability 1/2 and move it by up to four pixels each way.

    Args:
      example: {"image": (height, width, channels), ...}, normalized; the border that comes into
        view is 0, the mean.
      generator: The source of randomness.

    Returns:
      The example with a changed image of the same shape.
    """
    image = example["image"]
    height, width, _ = image.shape
    top, left = generator.integers(0, 2 * CROP, size=2, endpoint=True)
    if generator.integers(2):
        image = image[:, ::-1]
    bordered = np.pad(image, ((CROP, CROP), (CROP, CROP), (0, 0)))
    return {**example, "image": bordered[top : top + height, left : left + width]}
