"""From presets, files and settings to configs. Only ``experiments`` and ``sweeps`` need torch."""
