"""Files that a user names: where they are, and whether they can be read."""

from pathlib import Path

from experiments.core.errors import Failed


def expanded(path: Path | str) -> Path:
    """A path whose leading `~` is the home folder.

    Raises:
      Failed: If that is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise Failed(f"{path}: the home folder is not known; give a path without ~") from error


def check_regular(path: Path) -> None:
    """Checks that what has a path, if anything has, is a file: a pipe would be waited for.

    Raises:
      Failed: If it is something else, or a link that leads nowhere.
    """
    if not path.is_file() and (path.exists() or path.is_symlink()):
        raise Failed(
            f"{path} is not a file but a folder, a pipe, a device or a broken link; give a file"
        )
