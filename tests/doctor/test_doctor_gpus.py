"""GPUs as driver and torch may see them; none is needed."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from asking import ask, levels

from rayfl.doctor import gpus
from rayfl.doctor.gpus import Card

CARD = Card("NVIDIA X", 80_000, 500, "560.1")


def machine(monkeypatch: pytest.MonkeyPatch, cards: list[Card], seen: int, cuda: str | None = "12.8") -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "driver_cards", lambda: cards)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA X")
    properties = SimpleNamespace(total_memory=80_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch, "ones", lambda size, device: torch.zeros(size))


def test_no_gpu_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [], 0, cuda=None)
    (found,) = ask("gpus", tmp_path)
    assert (found.level, found.text) == ("ok", "none: everything runs on CPUs")


def test_torch_for_cpus_beside_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [CARD], 0, cuda=None)
    (found,) = ask("gpus", tmp_path)
    assert found.level == "problem"
    assert "built for CPUs" in found.text


def test_a_driver_too_old_for_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [CARD], 0)
    (found,) = ask("gpus", tmp_path)
    assert found.level == "problem"
    assert "CUDA 12.8" in found.text
    assert "driver 560.1" in found.text


def test_hidden_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [CARD], 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = ask("gpus", tmp_path)
    assert (found.level, "CUDA_VISIBLE_DEVICES" in found.text) == ("warning", True)


def test_usable_gpus_and_their_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [CARD, CARD], 2)
    found = ask("gpus", tmp_path)
    assert levels(found) == ["ok"] * 3
    assert found[1].text == "cuda:1 is NVIDIA X, 80 GB"
    assert found[2].text.endswith("1 for 2, 0.5 for 4, 0.33 for 6, 0.25 for 8, 0.2 for 10")


def test_a_gpu_that_torch_can_not_compute_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [CARD], 1)

    def fail(size: int, device: str) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(torch, "ones", fail)
    found = ask("gpus", tmp_path)[0]
    assert found.level == "problem"
    assert found.text == "torch can't compute on cuda:0, NVIDIA X (CUDA error: no kernel image is available)"


def test_a_gpu_in_use_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [Card("NVIDIA X", 80_000, 60_000, "560.1")], 1)
    _, found, _ = ask("gpus", tmp_path)
    assert (found.level, found.text) == ("warning", "others use 60 of 80 GB of a NVIDIA X")


def test_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its real output format; cards that don't tell their memory are left out."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA X, 81559, 4, 560.1'\necho 'NVIDIA Y, [N/A], [N/A], 560.1'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus.driver_cards() == [Card("NVIDIA X", 81559, 4, "560.1")]
    monkeypatch.setenv("PATH", "")
    assert gpus.driver_cards() == []
