"""One thread, as in every process of a run: the bits of a result depend on it. One Ray for all tests."""

from collections.abc import Iterator

import pytest
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
