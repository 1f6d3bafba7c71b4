"""Files from the network: complete and checked, or not there at all."""

import contextlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from experiments.core.errors import Failed
from experiments.core.progress import progress
from experiments.core.store import file_sha256

BLOCK = 2**20
ATTEMPTS = 3


def download(url: str, path: Path, *, sha256: str, timeout: float = 30.0) -> Path:
    """Fetch a file unless it is there; it appears once its hash has been checked.

    What arrived before a connection broke stays next to it as `NAME.part`. The next attempt, in
    this call or in a later one, asks for the rest; if the server sends everything instead, the
    download starts over.

    Args:
      url: http or https.
      path: The file's path; a file with another hash is replaced.
      sha256: The SHA-256 of the correct content, in hexadecimal.
      timeout: Seconds without data after which a connection counts as broken.

    Returns:
      `path`.

    Raises:
      Failed: If the server refuses, the connection breaks at every attempt, the content has
        another hash, or the disk is full; in the last two cases nothing is kept.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        if path.exists() and file_sha256(path) == sha256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        _fetch(url, part, timeout)
        if resumed and file_sha256(part) != sha256:  # it may have begun another file
            part.unlink()
            _fetch(url, part, timeout)
        if (found := file_sha256(part)) != sha256:
            part.unlink()
            raise Failed(
                f"{url} was changed or damaged on the way: its SHA-256 is {found} but should be "
                f"{sha256}; try again, or put the correct file at {path}"
            )
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise Failed(
            f"{path} could not be written: {error.strerror}; nothing is left there half-written"
        ) from error
    return path


@contextlib.contextmanager
def _network() -> Iterator[None]:
    """Turn network errors into ConnectionErrors; any other OSError is the disk's."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(str(error)) from error


def _fetch(url: str, part: Path, timeout: float) -> None:
    """Fetch all of `url` into `part`, in as many attempts as are allowed."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _fetch_rest(url, part, timeout)
        except ConnectionError as error:
            if attempt == ATTEMPTS:
                hint = (
                    f"{_size(part)} bytes are kept, and the same command continues from there"
                    if part.exists()
                    else f"try again, or put the file at {part.with_suffix('')} yourself"
                )
                raise Failed(f"{url} could not be downloaded: {error}; {hint}") from error


def _fetch_rest(url: str, part: Path, timeout: float) -> None:
    """Append what `part` lacks, through one connection."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with _network():
            response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it is complete or belongs to another file; its hash will tell
        raise Failed(
            f"{url} could not be downloaded: the server answers {error.code} {error.reason}"
        ) from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        total = have + int(response.headers["Content-Length"] or 0)
        label = f"{part.stem}, MB"
        with (
            part.open("ab" if have else "wb") as file,
            progress(label, -(-total // BLOCK), have // BLOCK) as advance,
        ):
            while block := _read(response):
                file.write(block)
                advance(1)
    if _size(part) < total:
        raise ConnectionError(f"the connection ended after {_size(part)} of {total} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    with _network():
        return response.read(BLOCK)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
