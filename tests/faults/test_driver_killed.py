"""SIGKILL for the driver: what it started is gone soon, and ``--resume`` ends on the same bits."""

import signal
import time
from pathlib import Path

import apart
import pytest
import small

from rayfl import runs
from rayfl.experiment import Experiment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "moment",
    ["os.fsync = apart.die", "checkpoint.Path.replace = apart.die"],
    ids=["while a checkpoint is written", "between writing and renaming it"],
)
def test_a_checkpoint_broken_off_is_never_loaded_and_removed_at_the_next_start(
    moment: str, tmp_path: Path
) -> None:
    config = small.config("fedavg", rounds=6)
    code = (
        "def save(folder, t, state, save=checkpoint.save):\n"
        f"    if t == 4: {moment}\n"
        "    return save(folder, t, state)\n"
        "checkpoint.save = save\n"
        "runs.execute(small.config('fedavg', rounds=6), out)\n"
    )
    done = apart.run(code, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = runs.cell_folder(tmp_path, config.cell_hash)
    torn = list(folder.glob(".checkpoint-000004.pt.*"))
    assert len(torn) == 1, list(folder.iterdir())
    found = runs.execute(config, tmp_path, resume=True)
    assert not torn[0].exists()
    assert found.weights_sha256 == Experiment(config).run().weights_sha256


@pytest.mark.ray
def test_killed_in_a_round_nothing_stays_behind_and_the_rest_is_the_same(
    ray_cluster: None, tmp_path: Path
) -> None:
    """Its Ray, its actors: gone, but for two helpers of Ray's own that give up a minute later. The rest of
    the run needs the checkpoint alone."""
    code = (
        "config = small.config('splitfed_v1', apart.FLEET)\n"
        "runs.execute(config, out, observers=[apart.KillIn(3, out / 'below')])\n"
    )
    done = apart.run(code, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    below = apart.written(tmp_path / "below")
    assert len(below) >= 5
    until = time.monotonic() + 60
    while below & apart.alive().keys() and time.monotonic() < until:
        time.sleep(0.1)
    assert not below & apart.alive().keys()
    found = runs.execute(small.config("splitfed_v1", apart.FLEET), tmp_path, resume=True)
    assert found.weights_sha256 == Experiment(small.config("splitfed_v1")).run().weights_sha256


@pytest.mark.ray
def test_a_raylet_that_is_killed_ends_the_run_in_order(ray_cluster: None, tmp_path: Path) -> None:
    """Left to itself, Ray would end the process without a word, or wait. The rest is the same. Rounds without
    a raylet may follow, until somebody looks."""
    code = (
        "from rayfl.errors import RunFailed\n"
        "config = small.config('splitfed_v1', apart.FLEET, rounds=40)\n"
        "try: runs.execute(config, out, observers=[apart.KillIn(3, out / 'below', 'raylet')])\n"
        "except RunFailed as failure: sys.exit(str(failure))\n"
    )
    done = apart.run(code, tmp_path)
    said = done.stderr.splitlines()[-1]
    assert said == "Ray broke down, its raylet on this machine is gone: go on with --resume"
    assert done.returncode == 1
    config = small.config("splitfed_v1", apart.FLEET, rounds=40)
    stored = runs.load(runs.cell_folder(tmp_path, config.cell_hash))
    assert stored is not None
    assert stored.result.status == "FAILED"
    assert 3 <= stored.result.rounds < 40
    found = runs.execute(config, tmp_path, resume=True)
    assert found.weights_sha256 == Experiment(small.config("splitfed_v1", rounds=40)).run().weights_sha256
