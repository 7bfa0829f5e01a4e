"""What tests of faults share: actors kept from test to test, and the bench of kills."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rayfl.actors.fleet import ActorPool

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture(scope="session")
def actors(ray_cluster: None) -> "Iterator[ActorPool]":
    """Actors that outlive a test, since starting one takes seconds."""
    from rayfl.actors.fleet import ActorPool

    pool = ActorPool()
    yield pool
    pool.close()
