"""What is known of a dataset, prepared or not."""

from dataclasses import replace

from rayfl.data.catalogue import damage, locate, read_meta
from rayfl.data.config import DataConfig
from rayfl.data.info import Outline
from rayfl.errors import UserError


def outline(config: DataConfig) -> Outline:
    """Shape and counts of the set that ``config`` names, as batches will have them; prepares nothing.

    Raises UserError for an unknown name, or a set that isn't prepared and whose files decide what it holds.
    """
    place = locate(config)
    meta = read_meta(place.folder) if damage(place) is None else None
    if meta is not None:
        train = meta["splits"]["train"]
        known = Outline(
            shape=tuple(meta["shape"]),
            class_counts=tuple(train["class_counts"]),
            num_test=meta["splits"]["test"]["rows"],
            task=meta["task"],
        )
    elif place.info.outline is not None:
        known = place.info.outline(place.config)
    else:
        raise UserError(
            f"dataset '{place.name}' isn't prepared, and only its files tell what it holds: {place.command}"
        )
    if config.image_size is None:
        return known
    return replace(known, shape=(known.shape[0], config.image_size, config.image_size))
