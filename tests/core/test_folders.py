"""core/folders.py: one process at a time in a folder."""

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from experiments.core import folders
from experiments.core.errors import Failed
from experiments.core.folders import LOCK, locked

SPAWN = multiprocessing.get_context("spawn")


def hold(folder, ready, release):
    """Hold a folder until an event, or until killed; run in another process."""
    with locked(Path(folder)):
        ready.set()
        release.wait()


@pytest.fixture
def holder(tmp_path):
    """(folder, the process that holds it, the event that makes it let go)."""
    ready, release = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(str(tmp_path / "run"), ready, release))
    process.start()
    assert ready.wait(60)
    yield tmp_path / "run", process, release
    process.kill()
    process.join()


def refused(folder):
    with pytest.raises(Failed) as error, locked(folder):
        pass
    return str(error.value)


def test_a_second_process_learns_who_has_the_folder(holder):
    folder, process, _ = holder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    who = f"{folder} is in use by process {process.pid} on {socket.gethostname()}; "
    assert refused(folder).startswith(who)
    assert refused(folder).startswith(who)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_holds_nothing(signum, holder):
    folder, process, _ = holder
    os.kill(process.pid, signum)
    process.join()
    with locked(folder):
        assert refused(folder).startswith(f"{folder} is in use by process {os.getpid()} on")


def test_the_lock_ends_with_the_block_and_leaves_nothing(holder):
    folder, process, release = holder
    release.set()
    process.join()
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    with locked(folder):
        pass


def test_only_one_of_many_processes_is_inside(tmp_path):
    inside, most, entries = [], [], []

    def enter():
        for _ in range(200):
            try:
                with locked(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    entries.append(1)
            except Failed:
                pass

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries
    assert max(most) == 1


def test_a_replaced_folder_stays_locked_for_its_new_owner(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        folder.rename(tmp_path / "old")
        with locked(folder):
            assert "in use" in refused(folder)
        new = locked(folder)
        new.__enter__()
    assert "in use" in refused(folder)
    new.__exit__(None, None, None)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_with_a_warning(number, tmp_path, monkeypatch, capsys):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        pass
    said = f"{tmp_path} is on a file system without locks ({os.strerror(number)})"
    assert said in capsys.readouterr().err


def test_a_lock_that_cannot_be_made_gives_one_message(tmp_path, monkeypatch):
    (tmp_path / LOCK).mkdir()
    assert refused(tmp_path) == f"{tmp_path / LOCK} cannot be locked (Is a directory)"
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in refused(tmp_path / "file")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders.os, "pwrite", full)
    (tmp_path / LOCK).rmdir()
    assert "No space left on device" in refused(tmp_path)
    monkeypatch.undo()
    with locked(tmp_path):
        pass
