"""One thread, as in every process of a run: the bits of a result depend on it. One Ray for all tests, and one
MLflow store to copy."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts something in the background has it ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has its own Ray, and leaves no note in a folder where another one's would look for it.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rayfl-")
    atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Not imported above, where the process that only hands tests out would wait for it.
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray on this machine, started once."""
    import ray

    from rayfl.actors.fleet import ensure_ray

    ensure_ray(num_cpus=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store: making one takes MLflow seconds."""
    from rayfl import tracking

    folder = tmp_path_factory.mktemp("mlflow")
    tracking.prepare(f"sqlite:///{folder}/mlflow.db", "none")
    return folder / "mlflow.db"
