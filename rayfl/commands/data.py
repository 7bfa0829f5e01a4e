"""``rayfl data``: prepare datasets, list them, show what is known of one."""

import argparse
from dataclasses import replace

from rayfl import text, waiting
from rayfl.commands.command import DONE, Command, print_json, takes_actions


def prepare(args: argparse.Namespace) -> int:
    """Prepare a dataset before a run needs it, or under a name of one's own."""
    with waiting.loading():
        from rayfl import data
        from rayfl.data.progress import Progress

    config = data.DataConfig(name=args.name, source=args.source, root=args.root)
    place = data.locate(config, args.own_name)
    made = data.prepare(place, args.on_unreadable, Progress())
    card = data.read_card(place.folder)
    skipped = sum(len(split["skipped"]) for split in card["splits"].values())
    if args.json:
        print_json({"folder": str(place.folder), "made": made, "skipped": skipped, "card": card})
        return DONE
    images = " + ".join(f"{split['images']} {name}" for name, split in card["splits"].items())
    print(f"{place.name}: {images} images in {place.folder}")
    if not made:
        print("it was prepared before: delete the folder to prepare it anew")
    if skipped:
        left_out = text.counted(skipped, "image")
        print(f"left out {left_out} that couldn't be read: rayfl data info {place.name}")
    train, _ = data.open_dataset(replace(config, name=place.name))
    if train.encoded:
        size = "x".join(map(str, train.shape[1:]))
        print(f"images are read at {size}; data.image_size=N reads them at NxN")
    print(f"use it with: data.name={place.name}")
    return DONE


def list_datasets(args: argparse.Namespace) -> int:
    """All datasets, and which are prepared."""
    with waiting.loading():
        from rayfl import data

    rows = data.overview(data.DataConfig(root=args.root))
    if args.json:
        print_json({"datasets": rows})
        return DONE
    body = [
        (
            row["name"],
            f"prepared, {text.in_bytes(row['bytes'])}" if row["prepared"] else "-",
            row["description"],
        )
        for row in rows
    ]
    print(text.columns(body))
    return DONE


def info(args: argparse.Namespace) -> int:
    """The card of a prepared dataset; of another, what is known and how to get it."""
    with waiting.loading():
        from rayfl import data

    place = data.locate(data.DataConfig(name=args.name, root=args.root))
    if data.damage(place) is None:
        card = data.read_card(place.folder)
        if args.json:
            print_json({"name": place.name, "prepared": True, "folder": str(place.folder), "card": card})
        else:
            print(f"{data.card_markdown(card)}\nprepared in {place.folder}")
        return DONE
    known = data.unprepared(place)
    if args.json:
        print_json({"name": place.name, "prepared": False, **known})
    else:
        print(f"# {place.name}\n")
        print("\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in known.items() if value))
        print(f"\nnot prepared: the first run prepares it if it can, or\n  {place.command}")
    return DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl data`` takes."""
    takes_actions(parser, ACTIONS, _add_options)


def _add_options(sub: argparse.ArgumentParser, action: str) -> None:
    """Those of one action."""
    root = "folder of prepared datasets (default: RAYFL_DATA, else ~/.cache/rayfl)"
    sub.add_argument("--root", metavar="DIR", help=root)
    if action == "list":
        return
    sub.add_argument("name", metavar="NAME", help="a dataset: rayfl data list")
    if action == "prepare":
        own_name = "what data.name will call it (own files; default: the name of their folder)"
        unreadable = "stop at an image that can't be read, or leave it out (default: raise)"
        sub.add_argument("--source", metavar="PATH", help="the official files, or your own")
        sub.add_argument("--as", dest="own_name", metavar="OWN_NAME", help=own_name)
        sub.add_argument(
            "--on-unreadable",
            choices=("raise", "skip"),
            metavar="raise|skip",
            default="raise",
            help=unreadable,
        )


ACTIONS = {
    "prepare": (
        prepare,
        "Prepare a dataset, once; a killed preparation goes on where it stopped.",
        "  rayfl data prepare mnist5k\n"
        "  rayfl data prepare ham10000 --source ~/downloads/ham10000 --on-unreadable skip\n"
        "  rayfl data prepare imagefolder --source ~/pictures/pets --as pets",
    ),
    "list": (list_datasets, "List all datasets, and which are prepared.", "  rayfl data list --json"),
    "info": (info, "Show what a dataset holds, or how to get it.", "  rayfl data info mnist5k"),
}

EXAMPLES = """\
  rayfl data list
  rayfl data info ham10000
  rayfl data prepare imagefolder --source ~/pictures/pets --as pets"""

COMMAND = Command(
    name="data",
    help="Prepare datasets, list them, show what is known of one.",
    examples=EXAMPLES,
    arguments=arguments,
    main=list_datasets,
    go_on="{again} goes on with what is done so far",
)
