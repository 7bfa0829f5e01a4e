"""Experiments in a process of their own, which may die, and the processes below it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rayfl.experiment import Experiment, Observer
from rayfl.fleet_config import FleetConfig

HERE = Path(__file__).parent
FLEET = FleetConfig(kind="ray", client_actors=2, cpus_per_actor=0)
Process = tuple[int, str]
"""Its number, and when it started: numbers are used again."""


def die(*_: object) -> None:
    """As the kernel has it: no handler, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillIn(Observer):
    """After a round, lists the processes below this one and kills it, or the one below of a program."""

    def __init__(self, t: int, below: Path, program: str = "") -> None:
        self.t, self.below, self.program = t, below, program

    def on_round(self, experiment: Experiment, row: dict[str, float]) -> None:
        if row["round"] != self.t:
            return
        found = descendants(os.getpid())
        self.below.write_text("\n".join(f"{pid} {since}" for pid, since in found))
        victims = [pid for pid, _ in found if self.program and _program(pid) == self.program]
        os.kill(victims[0] if self.program else os.getpid(), signal.SIGKILL)


def run(code: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run code that finds ``small``, ``apart``, ``checkpoint``, ``runs`` and ``out``."""
    script = (
        "import sys, os, torch\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        f"sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
        "import apart, small\n"
        "from rayfl import checkpoint, runs\n"
        f"out = Path({str(out)!r})\n{code}"
    )
    return subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)


def written(below: Path) -> set[Process]:
    """What ``KillIn`` listed."""
    found = (line.split() for line in below.read_text().splitlines())
    return {(int(pid), since) for pid, since in found}


def alive() -> dict[Process, int]:
    """The parent of every process that is neither a zombie nor one of Ray's agents."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        state, parent, *more = stat.rpartition(") ")[2].split()
        if state != "Z" and b"Agent" not in command:
            found[int(entry.name), more[17]] = int(parent)
    return found


def descendants(pid: int) -> list[Process]:
    """All processes below one."""
    above, found = alive(), {pid}
    while True:
        more = {child for (child, _), parent in above.items() if parent in found} - found
        if not more:
            return sorted(process for process in above if process[0] in found - {pid})
        found |= more


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    except OSError:
        return ""
