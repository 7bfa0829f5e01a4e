"""CPUs, memory, shared memory, ports and limits, each in a made-up situation."""

import os
import resource
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from asking import ask, levels

from rayfl import allotment
from rayfl.doctor import memory, ports


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 CPUs, of which all may be used; 16 GB, of which 8 are available; no Slurm."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(allotment, "cpu_quota", lambda: None)
    monkeypatch.setattr(allotment, "memory_limit", lambda: None)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    meminfo(tmp_path, 16, 8)


def meminfo(folder: Path, total_gb: float, available_gb: float) -> None:
    total, available = (int(gb * 1e9 / 1024) for gb in (total_gb, available_gb))
    (folder / "meminfo").write_text(f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")


def test_all_cpus(tmp_path: Path) -> None:
    (found,) = ask("cpus", tmp_path)
    assert (found.level, found.text) == ("ok", "this process can run on 8 of 8 CPUs")


def test_a_quota_below_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allotment, "cpu_quota", lambda: 2.5)
    (found,) = ask("cpus", tmp_path)
    assert found.text == "this process can run on 8 of 8 CPUs, with time for 2.5 (cgroup quota)"


@pytest.mark.parametrize(("given", "said"), [("4", ", of which Slurm gave its job 4"), ("8", "")])
def test_slurm_gave_less_than_the_process_can_use(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", given)
    (found,) = ask("cpus", tmp_path)
    assert (found.level, found.text) == ("ok", f"this process can run on 8 of 8 CPUs{said}")


def test_memory_for_each_cpu(tmp_path: Path) -> None:
    assert levels(ask("memory", tmp_path)) == ["ok"]
    meminfo(tmp_path, 16, 1.6)
    fine, short = ask("memory", tmp_path)
    assert "1.6 GB available of 16.0 GB" in fine.text
    assert short.level == "warning"
    assert "fleet.client_actors=3" in short.remedy


def test_a_cgroup_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allotment, "memory_limit", lambda: 1_000_000_000)
    fine, short = ask("memory", tmp_path)
    assert "limit is 1.0 GB" in fine.text
    assert "client_actors=2" in short.remedy


@pytest.mark.parametrize(("free_gb", "level"), [(0.064, "warning"), (2.3, "warning"), (2.5, "ok")])
def test_shared_memory_against_what_ray_wants(
    free_gb: float, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 % of the 8 GB that are available: 2.4 GB."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(free_gb * 1e9)))
    (found,) = ask("shared_memory", tmp_path)
    assert found.level == level
    assert ("--shm-size=2.6g" in found.remedy) == (level == "warning")


def test_taken_ports_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_PORTS", {taken: "somebody"})
        (found,) = ask("ports", tmp_path)
        assert (found.level, found.text) == ("ok", f"{taken} is taken, probably by somebody")
    (found,) = ask("ports", tmp_path)
    assert found.text == f"{taken} is free"


@pytest.mark.parametrize(
    ("files", "processes", "expected"),
    [
        (1 << 20, resource.RLIM_INFINITY, ["ok", "ok"]),
        (1024, resource.RLIM_INFINITY, ["warning", "ok"]),
        (resource.RLIM_INFINITY, 699, ["ok", "warning"]),
        (4096, 700, ["ok", "ok"]),
    ],
)
def test_limits(
    files: int, processes: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 8 CPUs; the soft limit of files is what Ray raises by itself."""
    kinds = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: processes}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, kinds[kind]))
    of_files, of_processes = ask("limits", tmp_path)
    assert levels([of_files, of_processes]) == expected
    assert ("ulimit -Hn 4096" in of_files.remedy) == (files == 1024)
    assert ("ulimit -Hu 700" in of_processes.remedy) == (processes == 699)
