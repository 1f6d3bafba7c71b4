"""Several processes of one run, on this machine."""

import os
import socket
import subprocess
import sys

SECONDS = 180.0


def start(*programs):
    """Start processes that form one run, each with one device, and wait for them.

    Args:
      *programs: Python's arguments in each process, before `--coordinator HOST:PORT
        --num-processes N --process-id I`.

    Returns:
      (exit code, standard output, standard error) of each.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    environment = {**os.environ, "XLA_FLAGS": flags, "GLIBC_TUNABLES": ""}
    together = ("--coordinator", f"127.0.0.1:{port}", "--num-processes", str(len(programs)))
    processes = [
        subprocess.Popen(
            [sys.executable, *program, *together, "--process-id", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number, program in enumerate(programs)
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *out) for process, out in zip(processes, outputs, strict=True)]
