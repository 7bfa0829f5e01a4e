"""SIGKILL for the driver: what it started is gone soon, and ``--resume`` ends on the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small

from rayfl import runs
from rayfl.experiment import Experiment, Observer
from rayfl.fleet_config import FleetConfig

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def die(*_: Any) -> None:
    """As the kernel has it: no handler, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


class DieIn(Observer):
    """Dies after a round, leaving a list of the processes below it."""

    def __init__(self, t: int, below: Path) -> None:
        self.t, self.below = t, below

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        if row["round"] == self.t:
            self.below.write_text(" ".join(map(str, descendants(os.getpid()))))
            die()


def parents() -> dict[int, int]:
    """The parent of every process that is neither a zombie nor one of Ray's agents."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        state, parent = stat.rpartition(") ")[2].split()[:2]
        if state != "Z" and b"Agent" not in command:
            found[int(entry.name)] = int(parent)
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    above, found = parents(), {pid}
    while True:
        more = {child for child, parent in above.items() if parent in found} - found
        if not more:
            return sorted(found - {pid})
        found |= more


def killed(code: str, out: Path) -> None:
    """Run code that kills itself. It finds this folder's modules, ``out`` and ``config``."""
    script = (
        "import sys, os, torch\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        f"sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
        "import small, test_driver_killed as here\n"
        "from rayfl import checkpoint, runs\n"
        f"out = Path({str(out)!r})\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "moment",
    ["os.fsync = here.die", "checkpoint.Path.replace = here.die"],
    ids=["while a checkpoint is written", "between writing and renaming it"],
)
def test_a_checkpoint_broken_off_is_never_loaded_and_removed_at_the_next_start(
    moment: str, tmp_path: Path
) -> None:
    config = small.config("fedavg")
    code = (
        "def save(folder, t, state, save=checkpoint.save):\n"
        f"    if t == 4: {moment}\n"
        "    return save(folder, t, state)\n"
        "checkpoint.save = save\n"
        "runs.execute(small.config('fedavg', rounds=6), out)\n"
    )
    config = small.config("fedavg", rounds=6)
    killed(code, tmp_path)
    folder = runs.cell_folder(tmp_path, config.cell_hash)
    torn = list(folder.glob(".checkpoint-000004.pt.*"))
    assert len(torn) == 1
    found = runs.execute(config, tmp_path, resume=True)
    assert not torn[0].exists()
    assert found.weights_sha256 == Experiment(config).run().weights_sha256


@pytest.mark.ray
def test_killed_in_a_round_nothing_stays_behind_and_the_rest_is_the_same(
    ray_cluster: None, tmp_path: Path
) -> None:
    """Its Ray, its actors: gone, but for two helpers of Ray's own that give up a minute later. The rest of
    the run needs the checkpoint alone."""
    fleet = FleetConfig(kind="ray", client_actors=2, cpus_per_actor=0, placement="separate")
    config = small.config("splitfed_v1", fleet)
    code = (
        "from rayfl.fleet_config import FleetConfig\n"
        "fleet = FleetConfig(kind='ray', client_actors=2, cpus_per_actor=0, placement='separate')\n"
        "runs.execute(small.config('splitfed_v1', fleet), out, observers=[here.DieIn(3, out / 'below')])\n"
    )
    killed(code, tmp_path)
    below = {int(pid) for pid in (tmp_path / "below").read_text().split()}
    assert len(below) >= 5
    until = time.monotonic() + 60
    while below & parents().keys() and time.monotonic() < until:
        time.sleep(0.1)
    assert not below & parents().keys()
    found = runs.execute(config, tmp_path, resume=True)
    assert found.weights_sha256 == Experiment(small.config("splitfed_v1")).run().weights_sha256
