"""experiments/data/downloads.py against a local server that breaks off, lies or refuses."""

import contextlib
import hashlib
import http.server
import resource
import socket
import threading

import numpy as np
import pytest

from experiments.core.errors import Failed
from experiments.data.downloads import download

CONTENT = np.random.default_rng(0).bytes(5 * 2**20 + 17)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TIMEOUT = 0.5


class Server(http.server.ThreadingHTTPServer):
    """A handler that serves `content`; its faults are set on it.

    Attributes:
      breaks: Bytes after which each of the next responses ends; None for a whole one.
      ranges: Whether it can send a part of the file.
      stalls: Whether it keeps a broken connection open and silent.
      starts: First byte asked for by each request so far.
    """

    def __init__(self, content=CONTENT):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.breaks, self.ranges, self.stalls, self.starts = [], True, False, []
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"
        self.done = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        server.starts.append(start)
        if self.path != "/file.bin":
            return self.send_error(404)
        if not server.ranges:
            start = 0
        elif start >= len(server.content):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.breaks.pop(0) if server.breaks else None])
        if server.stalls:
            server.done.wait()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.done.set()
        server.shutdown()
        thread.join()


def fetch(server, path):
    return download(server.url, path, sha256=SHA256, timeout=TIMEOUT)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_complete_and_is_requested_once(server, tmp_path):
    path = tmp_path / "deep" / "file.bin"
    assert fetch(server, path) == path
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.bin"]
    fetch(server, path)
    assert server.starts == [0]


def test_a_file_with_another_hash_is_replaced(server, tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT[:-1])
    assert fetch(server, path).read_bytes() == CONTENT


def test_a_broken_transfer_is_continued_within_the_call(server, tmp_path):
    server.breaks = [1_000_003, 7]
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.starts == [0, 1_000_003, 1_000_010]


def test_a_silent_connection_counts_as_broken(server, tmp_path):
    server.breaks, server.stalls = [2**20], True
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.starts == [0, 2**20]


def test_a_later_call_continues_where_the_last_one_gave_up(server, tmp_path):
    path = tmp_path / "file.bin"
    server.breaks = [1000, 10, 1]
    with pytest.raises(Failed, match=r"after 1011 of \d+ bytes; 1011 bytes are kept"):
        fetch(server, path)
    assert names(tmp_path) == ["file.bin.part"]
    assert fetch(server, path).read_bytes() == CONTENT
    assert server.starts == [0, 1000, 1010, 1011]
    assert names(tmp_path) == ["file.bin"]


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    server.ranges, server.breaks = False, [1000]
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.starts == [0, 1000]


@pytest.mark.parametrize("part", [b"of another file", CONTENT + b"too long", CONTENT])
def test_the_beginning_of_another_file_is_discarded(server, tmp_path, part):
    (tmp_path / "file.bin.part").write_bytes(part)
    assert fetch(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]


def test_content_with_a_wrong_hash_is_refused_and_not_kept(server, tmp_path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(Failed, match=f"damaged on the way.* should be {SHA256}"):
        fetch(server, tmp_path / "file.bin")
    assert names(tmp_path) == []


def test_a_refusal_is_reported_at_once(server, tmp_path):
    with pytest.raises(Failed, match="the server answers 404 Not Found"):
        download(f"{server.url}.gz", tmp_path / "file.bin", sha256=SHA256)
    assert server.starts == [0]
    assert names(tmp_path) == []


def test_without_a_server_there_is_one_message(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        with pytest.raises(Failed, match=r"downloaded: .*refused.*; try again, or put the file"):
            download(url, tmp_path / "file.bin", sha256=SHA256)
    assert names(tmp_path) == []


def test_a_full_disk_is_reported_and_left_unchanged(server, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(Failed, match=r"could not be written: .*; nothing is left there"):
            fetch(server, tmp_path / "file.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_reported(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(Failed, match=r"taken/file\.bin could not be written"):
        fetch(server, tmp_path / "taken" / "file.bin")


def test_progress_is_reported_in_megabytes(server, tmp_path, monkeypatch):
    told = []

    def progress(label, total, done=0):
        told.append((label, total, done))
        return contextlib.nullcontext(told.append)

    monkeypatch.setattr("experiments.data.downloads.progress", progress)
    server.breaks = [2**20]
    fetch(server, tmp_path / "file.bin")
    assert told == [("file.bin, MB", 6, 0), 1, ("file.bin, MB", 6, 1), 1, 1, 1, 1, 1]
