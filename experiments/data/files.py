"""Files named by a user: where they are, and whether they can be read."""

from pathlib import Path

from experiments.core.errors import Failed


def expanded(path: Path | str) -> Path:
    """Replace a leading `~` by the home folder.

    Raises:
      Failed: If the home directory is unknown.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise Failed(f"{path}: the home directory is unknown; give a path without ~") from error


def check_regular(path: Path) -> None:
    """Check that whatever exists at a path is a regular file; reading a pipe would block.

    Raises:
      Failed: If it is something else or a broken link.
    """
    if not path.is_file() and (path.exists() or path.is_symlink()):
        raise Failed(
            f"{path} is not a file but a folder, a pipe, a device or a broken link; give a file"
        )
