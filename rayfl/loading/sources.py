"""Where a config starts from: a preset, a YAML file, or nested keys."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from rayfl.errors import UserError
from rayfl.loading.layers import Nested, Source, as_text, lay, plain, read_yaml

_PRESETS = Path(__file__).parent.parent / "presets"


def presets() -> list[str]:
    """The names of rayfl's presets."""
    return sorted(file.name.removesuffix(".yaml") for file in _PRESETS.glob("*.yaml"))


def preset_file(name: str) -> Path:
    """Where a preset is written."""
    return _PRESETS / f"{name}.yaml"


def nested_source(source: Source, above: tuple[str, ...] = ()) -> Nested:
    """The layer that a source stands for, its own preset included; ``above`` are those that start from it."""
    if isinstance(source, Mapping):
        content = lay({}, plain(dict(source), "config"))
    else:
        content = lay({}, _read_source(source))
    if "grid" in content:
        raise UserError("this describes a sweep (it has a grid), one experiment was wanted: use rayfl sweep")
    if "search" in content:
        raise UserError("this describes a search, one experiment was wanted: use rayfl tune")
    preset = content.pop("preset", None)
    if preset is None:
        return content
    name = as_text(preset, "preset")
    if name in above:
        raise UserError(f"presets start from each other, {' -> '.join([*above, name])}: change one of them")
    return lay(nested_source(name, (*above, name)), content)


def _read_source(source: str | Path) -> Nested:
    text = str(source)
    if not (isinstance(source, Path) or text.endswith((".yaml", ".yml")) or "/" in text):
        if text not in presets():
            raise _unknown_preset(text)
        return read_yaml(preset_file(text))
    if not Path(text).exists() and Path(text).stem in presets():
        raise UserError(f"there is no file '{text}': did you mean the preset '{Path(text).stem}'?")
    return read_yaml(source)


def _unknown_preset(name: str) -> UserError:
    if Path(f"{name}.yaml").exists():
        return UserError(f"unknown preset '{name}': did you mean the file '{name}.yaml'?")
    of_method = [preset for preset in presets() if preset.startswith(f"{name.partition('.')[0]}.")]
    near = get_close_matches(name, presets(), n=1, cutoff=0.85) or of_method
    near = near or get_close_matches(name, presets(), n=1)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see rayfl list presets"
    return UserError(f"unknown preset '{name}' (a file's name ends in .yaml): {hint}")
