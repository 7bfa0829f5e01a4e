"""CPUs and memory that a cgroup leaves, in both versions of cgroups, alone and nested."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rayfl import allotment


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(allotment, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(allotment, "_CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    return tmp_path


def put(tree: Path, membership: str, files: Mapping[str, str]) -> None:
    (tree / "cgroup").write_text(membership)
    for name, content in files.items():
        path = tree / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


V2 = "0::/job/step\n"
V1 = "4:memory:/docker/0ab\n2:cpu,cpuacct:/docker/0ab\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota", "cpus"),
    [
        (V2, {"job/step/cpu.max": "350000 100000\n"}, 3.5, 3),
        (V2, {"job/step/cpu.max": "max 100000\n"}, None, 8),
        (V2, {"job/step/cpu.max": "max 100000\n", "job/cpu.max": "200000 100000\n"}, 2.0, 2),
        (V2, {"job/step/cpu.max": "400000 100000\n", "job/cpu.max": "300000 100000\n"}, 3.0, 3),
        (V2, {"job/step/cpu.max": "50000 100000\n"}, 0.5, 1),
        (V2, {"job/step/cpu.max": "1600000 100000\n"}, 16.0, 8),
        # In a container of the first version the path is the host's, and the root is its own.
        (V1, {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, 8),
        ("", {}, None, 8),
    ],
)
def test_cpus(tree: Path, membership: str, files: Mapping[str, str], quota: float | None, cpus: int) -> None:
    put(tree, membership, files)
    assert allotment.cpu_quota() == quota
    assert allotment.num_cpus() == cpus


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (V2, {"job/step/memory.max": "max\n", "job/memory.max": "4000000000\n"}, 4_000_000_000),
        (V2, {"job/step/memory.max": "max\n"}, None),
        (V1, {"memory/memory.limit_in_bytes": "2000000000\n"}, 2_000_000_000),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_memory(tree: Path, membership: str, files: Mapping[str, str], limit: int | None) -> None:
    put(tree, membership, files)
    assert allotment.memory_limit() == limit


@pytest.mark.parametrize(("given", "cpus"), [("2", 2), ("16", 8), ("", 8), ("2(x3)", 8)])
def test_what_slurm_gave(given: str, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many CPUs the process could run on."""
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", given)
    assert allotment.num_cpus() == cpus


def test_a_system_without_cgroups_has_no_limits() -> None:
    assert (allotment.cpu_quota(), allotment.memory_limit(), allotment.num_cpus()) == (None, None, 8)
