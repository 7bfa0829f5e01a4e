"""What can be refused before torch is imported, which takes seconds: a fleet without room on this machine."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rayfl.fleet_config import FleetConfig
from rayfl.loading.layers import Nested, Source, lay, pairs, read_yaml
from rayfl.loading.sources import nested_source
from rayfl.room import at_most_here, check_room


def refuse_early(source: Source, settings: Sequence[str], with_files: Sequence[str | Path]) -> None:
    """Refuse a run whose fleet has no room here. Whatever else is wrong is left to the whole check."""
    layers = nested_source(source)
    for file in with_files:
        lay(layers, read_yaml(file))
    for key, value in pairs(settings):
        lay(layers, {key: value})
    fleet, num_clients, here = _fleet(layers), _num_clients(layers), at_most_here()
    elsewhere = os.environ.get("RAY_ADDRESS")
    if fleet is not None and num_clients is not None and here is not None and not elsewhere:
        check_room(fleet, num_clients, [here])


def _fleet(layers: Nested) -> FleetConfig | None:
    try:
        fleet = TypeAdapter(FleetConfig).validate_json(json.dumps(layers.get("fleet")), strict=True)
    except ValidationError:
        return None
    return fleet if fleet.kind == "ray" else None


def _num_clients(layers: Nested) -> int | None:
    data = layers.get("data")
    found = data.get("num_clients") if isinstance(data, dict) else None
    return found if isinstance(found, int) and found > 0 else None
