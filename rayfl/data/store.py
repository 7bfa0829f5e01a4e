"""The way to a dataset: opened where it lies, prepared first where it doesn't."""

from pathlib import Path

from rayfl.data.catalogue import damage, locate
from rayfl.data.config import DataConfig
from rayfl.data.dataset import Dataset, reopen
from rayfl.data.prepare import prepare
from rayfl.data.progress import Progress

_sound: set[Path] = set()
"""Folders that this process has found whole."""


def open_dataset(config: DataConfig) -> tuple[Dataset, Dataset]:
    """The train and test split that ``config`` names, prepared first where they aren't yet.

    Fast when called again: opened datasets are kept per process. Raises UserError for an unknown name, data
    that can't be had (offline, files missing), or a folder that can't be written.
    """
    place = locate(config)
    if place.folder not in _sound:
        if damage(place) is not None:
            prepare(place, config.on_unreadable, Progress())
        _sound.add(place.folder)
    train, test = (
        reopen(str(place.folder / f"{split}.arrow"), config.image_size, config.displacement)
        for split in ("train", "test")
    )
    return train, test


__all__ = ["Dataset", "open_dataset"]
