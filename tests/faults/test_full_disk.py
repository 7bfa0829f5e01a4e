"""A disk that takes no more: one line, the checkpoint before stays whole, and the run can go on."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import small

from rayfl import checkpoint, runs
from rayfl.errors import RunFailed
from rayfl.experiment import Experiment, Observer


class Limit(Observer):
    """From some round on, no file may grow beyond some bytes."""

    def __init__(self, t: int, size: int) -> None:
        self.t, self.size = t, size

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        if row["round"] == self.t:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


@contextmanager
def limits_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    """The kernel refuses to write on in the middle of the second checkpoint."""
    config = small.config("fedavg", rounds=6)
    with limits_restored(), pytest.raises(RunFailed, match=r"file too large.*ulimit -f.*--resume") as caught:
        runs.execute(config, tmp_path, observers=[Limit(3, 2000)])
    assert "\n" not in str(caught.value)
    folder = runs.cell_folder(tmp_path, config.cell_hash)
    assert [path.name for path in folder.glob("*.pt")] == ["checkpoint-000002.pt"]
    assert not list(folder.glob(".*.*"))
    state = checkpoint.load_latest(folder)
    assert state is not None
    assert state["round"] == 2
    found = runs.execute(config, tmp_path, resume=True)
    assert found.weights_sha256 == Experiment(config).run().weights_sha256


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.ENOSPC, "no space left on device: free some and"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
    ],
)
def test_each_trouble_has_its_remedy(number: int, line: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=f"{line}.*go on with --resume"), runs.disk_trouble(tmp_path):
        raise OSError(number, "whatever")


def test_other_trouble_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="whatever"), runs.disk_trouble(tmp_path):
        raise OSError(errno.EIO, "whatever")
