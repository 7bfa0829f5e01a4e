"""From the templates to a method's three files."""

import importlib.util
import keyword
import re
from pathlib import Path

from rayfl.errors import UserError
from rayfl.loading.sources import presets

_PRESET = """\
# MyMethod in the setting of fedavg.digits; what isn't set here is as it is there.
# Say which table and section of the paper this stands for, and the number to expect.
preset: fedavg.digits
algorithm:
  name: my_method:MyMethod
  damping: 0.5
"""


def write(name: str, like: str, folder: Path) -> list[Path]:
    """Write ``name.py``, ``name.yaml`` and ``test_name.py`` into ``folder``.

    Raises UserError for a name that can't be a module's or is taken, and where a file is there already.
    """
    _check_spelling(name)
    contents = {
        f"{name}.py": _template(f"like_{like}"),
        f"{name}.yaml": _PRESET,
        f"test_{name}.py": _template("checks"),
    }
    paths = [folder / file for file in contents]
    for path in paths:
        if path.exists():
            raise UserError(f"'{path}' is there already: choose another name, or another folder with --dir")
    _check_free(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            with path.open("x", encoding="utf-8") as file:
                file.write(_renamed(content, name, like))
    except OSError as error:
        raise UserError(
            f"can't write to '{folder}' ({error.strerror or error}): choose another folder with --dir"
        ) from error
    return paths


def _check_spelling(name: str) -> None:
    if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) and not keyword.iskeyword(name):
        return
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    near = re.sub(r"[\W_]+", "_", words).strip("_").lower()
    good = near if near.isidentifier() and near.isascii() and not keyword.iskeyword(near) else "my_method"
    raise UserError(
        f"a method is named like a Python module (small letters, digits, '_'), got '{name}': e.g. {good}"
    )


def _check_free(name: str) -> None:
    methods = {preset.partition(".")[0] for preset in presets()}
    if name in methods or importlib.util.find_spec(name) is not None:
        raise UserError(f"'{name}' is the name of a method or Python module: take another, e.g. my_{name}")


def class_name(name: str) -> str:
    """my_method as MyMethod."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _template(module: str) -> str:
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")


def _renamed(text: str, name: str, like: str) -> str:
    text = text.replace("my_method", name).replace("MyMethod", class_name(name))
    return text.replace("fedavg.digits", f"{like}.digits")
