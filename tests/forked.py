"""Calls of the command line, each in a forked child of one process that has imported everything.

A child has its own environment, streams, limits and working directory, and can be killed. Its
parent must not have started JAX: `python -m tests.forked` reads a list of `[argv, case]` in JSON
from its input and writes `[exit code, stdout, stderr]` of each, one per line.
"""

import gc
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback

SECONDS = 600.0


def call(argv, **case):
    """Return (exit code, standard output, standard error) of one call.

    Args:
      argv: The command's arguments.
      **case: Unusual conditions, as in `_set_up`, and `seconds` until it is killed (exit code -9).
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _be_the_child(argv, out.fileno(), err.fileno(), case)
        deadline = time.monotonic() + case.get("seconds", SECONDS)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        streams = (os.pread(file.fileno(), 2**20, 0) for file in (out, err))
        texts = (text.decode("utf-8", "backslashreplace") for text in streams)
        return os.waitstatus_to_exitcode(ended[1]), *texts


def _be_the_child(argv, out, err, case):
    code = 99
    try:
        from experiments import __main__ as cli

        _set_up(out, err, **case)
        cli._open_streams()
        code = cli.main(argv)
    except BaseException:
        os.write(err, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _set_up(
    out,
    err,
    env=(),
    cwd=None,
    encoding="utf-8",
    closed=(),
    unread=(),
    files=(),
    limits=(),
    seconds=None,
):
    """Make this process the unusual one.

    Args:
      out: The file that standard output goes to.
      err: The file that standard error goes to.
      env: Variables, None for none.
      cwd: The working directory; "deleted" is one that no longer exists.
      encoding: Encoding of the streams.
      closed: The descriptors, 1 or 2, that are closed.
      unread: The descriptors that are pipes that nobody reads.
      files: Other files for them, by descriptor.
      limits: Limits by their names in `resource`.
      seconds: Used only by the parent.
    """
    import jax

    for name, value in dict(env).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
        if name == "JAX_PLATFORMS":  # read at import
            jax.config.update("jax_platforms", value)
    if cwd == "deleted":
        cwd = tempfile.mkdtemp()
        os.chdir(cwd)
        os.rmdir(cwd)
    elif cwd is not None:
        os.chdir(cwd)
    for name, number in dict(limits).items():
        resource.setrlimit(getattr(resource, name), (number, number))
    for name, descriptor, file in (("stdout", 1, out), ("stderr", 2, err)):
        if descriptor in unread:
            reader, file = os.pipe()
            os.close(reader)
        if str(descriptor) in files:
            file = os.open(files[str(descriptor)], os.O_WRONLY)
        os.dup2(file, descriptor)
        stream = io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), encoding=encoding)
        setattr(sys, name, stream)
        if descriptor in closed:
            os.close(descriptor)
            setattr(sys, name, None)


def import_everything():
    """Import what the commands would, so that children need not."""
    from experiments import bench, figures
    from experiments.reproduce import commit, report  # noqa: F401
    from experiments.train import command  # noqa: F401

    bench.discover()
    figures.discover()
    gc.freeze()  # otherwise a child's first collection copies all of the parent's memory


if __name__ == "__main__":
    import_everything()
    for argv, case in json.load(sys.stdin):
        print(json.dumps(call(argv, **case)), flush=True)
