"""``rayfl list``: what there is to choose from."""

import argparse
import sys

from rayfl import waiting
from rayfl.commands.command import DONE, Command, print_json


def list_names(args: argparse.Namespace) -> int:
    """What there is to choose from."""
    with waiting.loading():
        rows = LISTS[args.kind]()
    if args.json:
        print_json({args.kind: [dict(zip(("name", "description"), row, strict=True)) for row in rows]})
    else:
        from rayfl import text

        print(text.columns(rows))
    return DONE


def first_line(text: str | None) -> str:
    """What a docstring opens with."""
    return (text or "").strip().split("\n", 1)[0]


def _methods() -> list[tuple[str, str]]:
    from rayfl.algorithms import FAMILIES

    return [
        (name, f"{first_line(sys.modules[method.__module__].__doc__)} [{family}]")
        for family, methods in FAMILIES.items()
        for name, method in methods.items()
    ]


def _datasets() -> list[tuple[str, str]]:
    from rayfl.data import DATASETS

    return [(name, info.description) for name, info in DATASETS.items()]


def _models() -> list[tuple[str, str]]:
    from rayfl.models import MODELS

    return [(name, description) for name, (_, description) in MODELS.items()]


def _partitions() -> list[tuple[str, str]]:
    from rayfl.data import SCHEMES

    return list(SCHEMES.items())


def _presets() -> list[tuple[str, str]]:
    from rayfl.loading.sources import preset_file, presets

    files = {name: preset_file(name).read_text(encoding="utf-8") for name in presets()}
    return [(name, text.split("\n", 1)[0].lstrip("# ")) for name, text in files.items()]


LISTS = {
    "methods": _methods,
    "datasets": _datasets,
    "models": _models,
    "presets": _presets,
    "partitions": _partitions,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl list`` takes."""
    parser.add_argument("kind", choices=tuple(LISTS), metavar="kind", help=", ".join(LISTS))


EXAMPLES = "  rayfl list methods\n  rayfl list presets --json"

COMMAND = Command(
    name="list",
    help="List what there is to choose from.",
    examples=EXAMPLES,
    arguments=arguments,
    main=list_names,
)
