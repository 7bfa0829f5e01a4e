"""What there is: the table of datasets, and the folders prepared so far."""

from typing import Any

from rayfl.data.catalogue import Place, prepared, root_of
from rayfl.data.config import DataConfig
from rayfl.data.datasets import DATASETS


def overview(config: DataConfig) -> list[dict[str, Any]]:
    """A row per name that ``data.name`` can have below ``config.root``: the table, then own names."""
    rows: dict[str, dict[str, Any]] = {
        name: {"name": name, "prepared": False, "bytes": 0, "description": info.description}
        for name, info in DATASETS.items()
    }
    for folder, meta in prepared(root_of(config)):
        name = meta["name"]
        if name not in rows:
            made_from = meta["source"] or "nothing"
            rows[name] = {
                "name": name,
                "description": f"own files: {meta['dataset']} from {made_from}",
                "bytes": 0,
            }
        # One name may have several folders, one for each combination of options.
        rows[name]["prepared"] = True
        rows[name]["bytes"] += sum(file.stat().st_size for file in folder.iterdir())
    return list(rows.values())


def unprepared(place: Place) -> dict[str, Any]:
    """What is known of a dataset that isn't prepared, and how to get it."""
    info = place.info
    known = None if info.outline is None else info.outline(place.config)
    return {
        "description": info.description,
        "task": None if known is None else known.task,
        "shape": None if known is None else known.shape,
        "num_train": None if known is None else sum(known.class_counts),
        "num_test": None if known is None else known.num_test,
        "num_classes": None if known is None else len(known.class_counts),
        "licence": info.licence,
        "how_to_get_it": info.remedy,
        "command": place.command,
    }
