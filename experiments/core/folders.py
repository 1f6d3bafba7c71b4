"""Folders that a command writes to: made if needed, and used by one process at a time."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from experiments.core.errors import Failed, say

LOCK = ".lock"
"""A file in a folder in use that says who uses it; one left by a killed process locks nothing."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""The error numbers of file systems without locks."""


def make_folder(folder: Path) -> None:
    """Make a folder if needed.

    Raises:
      Failed: If it cannot be made, or cannot be read and written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        effective = os.access in os.supports_effective_ids
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=effective):
            raise PermissionError(errno.EACCES, "not writable")
    except OSError as error:
        raise Failed(f"{folder} cannot be written to ({error.strerror})") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other `locked` block, here and in other processes, out of a folder.

    The lock is `flock` on the folder's file `.lock`: the system releases it when the process ends,
    even by `kill -9`. On NFS, Linux passes it on to the server, so it holds between machines unless
    the mount has `local_lock`. If a file system has no locks, a message says that nothing keeps a
    second process out, and the block runs.

    Args:
      folder: Made if needed. Until the block ends it holds the file `.lock`, which is not a result.

    Raises:
      Failed: If another process (the message has its number and machine) uses the folder, or it
        cannot be written to.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder):
    ...     [path.name for path in folder.iterdir()]
    ['.lock']
    >>> list(folder.iterdir())
    []
    """
    make_folder(folder)
    path = folder / LOCK
    try:
        descriptor = _lock(path)
    except OSError as error:
        raise Failed(f"{path} cannot be locked ({error.strerror})") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # if it stays, it locks nothing
            if _is_at(path, descriptor):
                path.unlink()
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Take the lock and return the descriptor that holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
        except BlockingIOError as error:
            owner = os.pread(descriptor, 1000, 0).decode(errors="replace") or "that is starting"
            os.close(descriptor)
            raise Failed(
                f"{path.parent} is in use by process {owner}; wait until it ends or give another "
                "folder"
            ) from error
        except FileNotFoundError:  # its last owner removed it between open and lock
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            say(
                f"{path.parent} is on a file system without locks ({error.strerror}): nothing "
                "keeps a second process out of it"
            )
            return descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the file at this path."""
    return os.path.samestat(os.fstat(descriptor), path.stat())
