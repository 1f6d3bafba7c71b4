"""Settings and fixtures shared by all tests."""

import importlib.metadata
import os

# Before JAX starts: the sharding tests need several devices, and the suite compiles thousands of
# small programs, which takes a third of the time without LLVM's optimizations, MLIR's emitters and
# modules split for threads. Flags of the environment win, for a run as users compile:
# XLA_FLAGS="--xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true" make test
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        # XLA lacks this flag from jaxlib 0.11.1 on, and stops at flags that it does not know.
        "--xla_cpu_use_fusion_emitters=false"
        if [*map(int, importlib.metadata.version("jaxlib").split(".")[:2])] < [0, 11]
        else "",
        "--xla_cpu_parallel_codegen_split_count=1",
        os.environ.get("XLA_FLAGS", ""),
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import contextlib
import ctypes
import functools
import gc
import json
import mmap
import signal
import threading
from pathlib import Path

import hypothesis
import jax
import pytest

# A deadline would depend on how busy the machine is.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")
jax.config.update("jax_numpy_rank_promotion", "raise")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
jax.devices()  # starts JAX; otherwise the first command-line test would decide for the others

gc.set_threshold(500_000)  # by default a tenth of the time goes into the search for garbage

# JAX 0.10 makes an MLIR context for each program, which takes half of the time in which a small one
# compiles, and keeps it: 1.2 of the 1.4 MB of such a program. Here, those of a thread share one,
# unless one is lowered within another.
_context_of_thread = None
# No public setting does this; a version of JAX that lacks the private name runs the tests slower.
with contextlib.suppress(ImportError, AttributeError):
    from jax._src.interpreters import mlir

    _make = mlir.make_ir_context
    _context_of_thread = functools.cache(lambda thread: _make())

    def _shared_or_new():
        try:
            outer = mlir.ir.Context.current
        except ValueError:
            outer = None
        return _make() if outer else _context_of_thread(threading.get_ident())

    mlir.make_ir_context = _shared_or_new

GOLDEN = Path(__file__).parent / "golden"


MAX_PROGRAMS = 2**30
"""Bytes of compiled programs above which a run starts anew; one run's are a tenth of it."""


def pytest_configure(config):
    """Keep compiled programs for other workers, child processes and the next run.

    `pytest --cache-clear` drops them.
    """
    if not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    folder = config.cache.mkdir("programs")
    if not hasattr(config, "workerinput"):  # no worker runs yet
        programs = list(folder.iterdir())
        if sum(program.stat().st_size for program in programs) > MAX_PROGRAMS:
            for program in programs:
                program.unlink()
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def pytest_collection_finish():
    """Leave modules and tests out of that search."""
    gc.freeze()


MAX_RESIDENT = 2.2 * 2**30
"""Bytes above which a worker drops compiled programs; no test needs half a gigabyte more."""


@pytest.fixture(autouse=True)
def _programs_are_forgotten():
    """Drop compiled programs, thousands of which would fill 6 GB for each worker."""
    yield
    pages = Path("/proc/self/statm")  # on Linux; elsewhere programs are kept
    if pages.exists() and int(pages.read_text().split()[1]) * mmap.PAGESIZE > MAX_RESIDENT:
        jax.clear_caches()
        if _context_of_thread:
            _context_of_thread.cache_clear()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what is freed, and each test would get here


@pytest.fixture
def x64():
    """float64 for the duration of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def golden():
    """`golden("stability")` is the content of tests/golden/stability.json."""
    return lambda name: json.loads((GOLDEN / f"{name}.json").read_text())
