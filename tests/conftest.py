"""One thread, as in every process of a run: the bits of a result depend on it. One Ray for all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
# A shell that starts something in the background has it ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has its own Ray, and leaves no note in a folder where another one's would look for it.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rayfl-")
    atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray on this machine, started once."""
    import ray

    from rayfl.actors.fleet import ensure_ray

    ensure_ray(num_cpus=2)
    yield
    ray.shutdown()
