"""One thread, as in every process of a run: the bits of a result depend on it. One Ray for all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
import torch

LONGEST = (
    *("test_tune", "test_trials", "test_nodes", "test_servers", "test_equivalences", "test_driver_killed"),
    *("test_kills", "test_live", "test_ray_fleets", "test_doctor_command"),
)
"""Files that take minutes go first, so that none is left to one process at the end."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the others as they come."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
