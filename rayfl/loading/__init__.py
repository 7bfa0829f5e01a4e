"""From presets, files and settings to configs."""

from rayfl.loading.experiments import dump, load_experiment, presets
from rayfl.loading.layers import lay, parse_override, read_yaml
from rayfl.loading.sweeps import load_sweep, sweep_cells

__all__ = [
    "dump",
    "lay",
    "load_experiment",
    "load_sweep",
    "parse_override",
    "presets",
    "read_yaml",
    "sweep_cells",
]
