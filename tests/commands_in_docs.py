"""What a page of documentation shows: its fenced blocks, the files and the commands in them."""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rayfl import cli
from rayfl.checking import SECTIONS
from rayfl.data.catalogue import FORMAT
from rayfl.loading.experiments import load_experiment
from rayfl.loading.layers import read_yaml
from rayfl.loading.searches import load_search
from rayfl.loading.sweeps import load_sweep

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str = r"\w*") -> list[str]:
    """The fenced blocks in a language, or all."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def shown(page: str) -> list[tuple[list[str], str]]:
    """Of every command line in the fenced blocks: the words after ``rayfl``, as a shell would split them, and
    the mistake that it is answered with, if that is what the page shows."""
    found = []
    for block in blocks(page):
        pattern = r"^ *(?:\$ )?(?:\w+=\S* )*rayfl (.*)(?:\nrayfl: error: (.*))?$"
        for line, error in re.findall(pattern, block.replace("\\\n", " "), re.M):
            words = shlex.split(line, comments=True)
            ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&", "&")]
            found.append((words[: min(ends, default=len(words))], error))
    return found


def commands(page: str) -> list[list[str]]:
    """The command lines that are right."""
    return [words for words, error in shown(page) if not error]


def check(words: list[str]) -> None:
    """Parse a command line as rayfl does and load what it names, without running it; a reader's own files may
    not be there. Raises UserError for what it doesn't take."""
    if "--help" in words:
        return
    args = cli.parse(words)
    if "--" in words:
        check(words[words.index("--") + 1 :])
    if not hasattr(args, "settings"):
        return
    named = [args.source, *(word for word in args.settings if "=" not in word)]
    settings = [word for word in args.settings if "=" in word]
    laid_over = [file for file in args.with_files if Path(file).exists()]
    methods = [re.match(r"algorithm\.name=(\w+):", word) for word in settings]
    if any(method and importlib.util.find_spec(method[1]) is None for method in methods):
        return
    for source in filter(None, named):
        if Path(source).exists() or not source.endswith(".yaml") or source.startswith("tune_configs/"):
            load(source, settings, laid_over)


def load(source: str | dict[str, Any], settings: list[str], laid_over: list[str]) -> None:
    """An experiment, a sweep or a search, whichever it is."""
    keys = source if isinstance(source, dict) else read_yaml(source) if source.endswith(".yaml") else {}
    if "search" in keys:
        load_search(source, settings, laid_over)
    elif "grid" in keys:
        assert load_sweep(source, settings, laid_over).cells()
    else:
        load_experiment(source, settings, laid_over)


def configs(page: str) -> Iterator[dict[str, Any]]:
    """The YAML blocks that are an experiment, a sweep, a search, or a part of one."""
    for block in blocks(page, "yaml"):
        for content in yaml.safe_load_all(block):
            keys = {key.split(".")[0] for key in content} if isinstance(content, dict) else set()
            if "apiVersion" not in keys and keys & {"preset", "grid", "search", *SECTIONS}:
                yield content


def write_files(page: str, folder: Path) -> None:
    """The files that a page shows, each a block that opens with ``# its_name``; and what it prepares."""
    (folder / "tune_configs").symlink_to(ROOT / "tune_configs")
    for block in blocks(page):
        named = re.match(r"# ([\w.]+\.(?:py|yaml|csv))\n", block)
        if named:
            (folder / named[1]).write_text(block)
    for name in re.findall(r"rayfl data prepare .*--as (\w+)", page):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        meta = {"format": FORMAT, "name": name, "dataset": "imagefolder", "source": "images"}
        (folder / "data" / name / "meta.json").write_text(json.dumps(meta))
