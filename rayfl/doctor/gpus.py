"""GPUs as the driver and torch see them, and how many client actors fit on them."""

import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from rayfl.doctor.finding import Finding, Request, ok, problem, warning

SHARES = (1.0, 0.5, 0.33, 0.25, 0.2)
_BUSY = 0.1
"""Share of a card's memory in use before anything started here that is worth a word."""
_INSTALL = "https://pytorch.org/get-started/locally names the right command"


@dataclass(frozen=True)
class Card:
    """A GPU as the driver sees it."""

    name: str
    total_mb: int
    used_mb: int
    driver: str


def check(request: Request) -> Iterator[Finding]:
    """Cards, whether torch can compute on each, and the shares."""
    import torch

    cards = driver_cards()
    count = torch.cuda.device_count()
    if count:
        yield from _usable(cards, count)
    elif not cards:
        yield ok("none: everything runs on CPUs")
    elif torch.version.cuda is None and torch.version.hip is None:
        yield problem(f"there is {cards[0].name}, but torch {torch.__version__} is built for CPUs", _INSTALL)
    elif os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        yield warning(
            f"there is {cards[0].name}, but CUDA_VISIBLE_DEVICES='{hidden}' hides it",
            "unset it to use the GPU",
        )
    else:
        yield problem(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) can't use {cards[0].name} with driver "
            f"{cards[0].driver}",
            f"update the driver, or install torch for an older CUDA: {_INSTALL}",
        )


def _usable(cards: list[Card], count: int) -> Iterator[Finding]:
    import torch

    for index in range(count):
        name, total = torch.cuda.get_device_name(index), torch.cuda.get_device_properties(index).total_memory
        try:
            torch.ones(2, device=f"cuda:{index}").sum().item()
            yield ok(f"cuda:{index} is {name}, {total / 1e9:.0f} GB")
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no further details"])[0]
            yield problem(f"torch can't compute on cuda:{index}, {name} ({reason})", _INSTALL)
    for card in cards:
        if card.used_mb > _BUSY * card.total_mb:
            yield warning(
                f"others use {card.used_mb / 1e3:.0f} of {card.total_mb / 1e3:.0f} GB of a {card.name}",
                "see nvidia-smi; choose free cards with CUDA_VISIBLE_DEVICES",
            )
    yield ok(f"client actors that fit, by fleet.gpus_per_actor: {shares(count)}")


def shares(count: int) -> str:
    """Actors that fit on ``count`` GPUs by the usual shares: each must find its share on one card."""
    return ", ".join(f"{share:g} for {count * math.floor(1 / share + 1e-9)}" for share in SHARES)


def driver_cards() -> list[Card]:
    """What nvidia-smi lists; nothing where there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "name,memory.total,memory.used,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [
        Card(name, int(total), int(used), driver)
        for name, total, used, driver in (row for row in rows if len(row) == 4)
        if total.isdecimal() and used.isdecimal()
    ]
