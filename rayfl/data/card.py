"""The card of a prepared dataset: where it came from, what it holds, what was done to it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.catalogue import Place
from rayfl.data.info import Built, Labels
from rayfl.data.sampling import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """What was stored of one split."""

    samples: Labels
    """Of the images that could be read."""
    dimensions: Ints
    """[N, 2] width and height of each, as they came."""
    skipped: list[tuple[str, str]]
    """Name and reason of each image that couldn't be read."""


def write(
    folder: Path, place: Place, built: Built, contents: Mapping[str, Content], normalisation: dict[str, Any]
) -> None:
    """Put ``card.json`` and, the same to be read, ``card.md`` into ``folder``."""
    card = {
        "name": place.name,
        "dataset": place.dataset,
        "description": place.info.description,
        "source": None if place.source is None else str(place.source),
        "options": place.options,
        "prepared": datetime.now(UTC).isoformat(timespec="seconds"),
        "licence": place.info.licence,
        "task": built.task,
        "num_classes": built.num_classes,
        "splits": {split: _split(content, built) for split, content in contents.items()},
        "normalisation": normalisation,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
    (folder / "card.md").write_text(markdown(card), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """The card of a prepared dataset."""
    card: dict[str, Any] = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    return card


def markdown(card: Mapping[str, Any]) -> str:
    """A card as people read it."""
    lines = [f"# {card['name']}", "", card["description"], ""]
    facts = {
        "layout": card["dataset"] if card["dataset"] != card["name"] else None,
        "source": card["source"],
        "options": ", ".join(f"{key}={value}" for key, value in card["options"].items()),
        "prepared": card["prepared"],
        "licence": card["licence"],
        "task": f"{card['task']}, {card['num_classes']} classes",
        "normalisation": _line(card["normalisation"]),
    }
    lines += [f"- {key}: {value}" for key, value in facts.items() if value]
    for name, split in card["splits"].items():
        lines += [
            "",
            f"## {name}",
            "",
            f"- images: {split['images']}",
            f"- sizes: {_size_line(split['sizes'])}",
        ]
        for key in ("classes", "domains"):
            if split[key]:
                lines.append(f"- {key}: " + ", ".join(f"{what} {n}" for what, n in split[key].items()))
        if split["groups"]:
            lines.append(f"- groups: {split['groups']}")
        if split["skipped"]:
            lines.append(f"- left out, unreadable: {len(split['skipped'])}")
            lines += [f"  - {one['name']} {one['reason']}" for one in split["skipped"]]
    return "\n".join(lines) + "\n"


def _split(content: Content, built: Built) -> dict[str, Any]:
    samples = content.samples
    classes = None if built.task == "segmentation" else samples.labels
    return {
        "images": len(samples.labels),
        "classes": _counts(classes, built.class_names, built.num_classes),
        "domains": _counts(samples.domains, built.domain_names, len(built.domain_names)),
        "groups": 0 if samples.groups is None else len(np.unique(samples.groups)),
        "sizes": _sizes(content.dimensions),
        "skipped": [{"name": name, "reason": reason} for name, reason in content.skipped],
    }


def _counts(numbers: Ints | None, names: Sequence[str], least: int) -> dict[str, int]:
    if numbers is None:
        return {}
    counts = np.bincount(numbers, minlength=least).tolist()
    return {names[k] if k < len(names) else str(k): count for k, count in enumerate(counts)}


def _sizes(dimensions: Ints) -> dict[str, Any]:
    sizes = Counter(map(tuple, dimensions.tolist()))
    return {
        "different": len(sizes),
        "commonest": [
            {"width": width, "height": height, "images": images}
            for (width, height), images in sizes.most_common(10)
        ],
        "width": [int(dimensions[:, 0].min()), int(dimensions[:, 0].max())],
        "height": [int(dimensions[:, 1].min()), int(dimensions[:, 1].max())],
    }


def _size_line(sizes: Mapping[str, Any]) -> str:
    first = sizes["commonest"][0]
    text = f"{first['width']}x{first['height']}"
    if sizes["different"] == 1:
        return text
    (narrow, wide), (low, high) = sizes["width"], sizes["height"]
    return (
        f"{sizes['different']} different, {text} the commonest ({first['images']} images); width {narrow} to "
        f"{wide}, height {low} to {high}"
    )


def _line(normalisation: Mapping[str, Any]) -> str:
    mean, std = (", ".join(f"{x:.4f}" for x in normalisation[key]) for key in ("mean", "std"))
    return f"mean {mean}; std {std} ({normalisation['how']})"
