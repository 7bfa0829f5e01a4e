"""What was probably meant by words that a command line can't hold."""

import argparse
import difflib
import itertools
import re
from collections.abc import Iterator, Sequence

from rayfl.errors import UserError
from rayfl.suggest import unknown


def refusal(parser: argparse.ArgumentParser, message: str) -> UserError:
    """argparse's complaint in rayfl's words."""
    choice = re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.S)
    if choice:
        kind, got, known = choice[1], choice[2], re.findall(r"[\w-]+", choice[3])
        if kind == "command" and _is_source(got):
            return UserError(f"'{got}' is no command: did you mean 'rayfl run {got}'?")
        return unknown(kind, got, known)
    missing = re.fullmatch(r"the following arguments are required: (\S+?)(,.*)?", message)
    for action in parser._actions:
        if missing and missing[1] in (action.metavar, action.dest):
            what = action.help or f"one of {', '.join(map(str, action.choices or ()))}"
            return UserError(f"{missing[1]} is missing ({what}): see {parser.prog} --help")
    return UserError(f"{message}: see {parser.prog} --help")


def check_words(args: argparse.Namespace, unplaced: Sequence[str], options: Sequence[str]) -> None:
    """Refuse words that argparse had no place for, and settings that aren't one word each."""
    settings: list[str] | None = getattr(args, "settings", None)
    for word, after in itertools.zip_longest(unplaced, unplaced[1:], fillvalue=""):
        if word.startswith("-"):
            raise _unknown_option(word, after, options, takes_settings=settings is not None)
        if settings is None or "=" not in word:
            remark = "Settings look like key=value: " if settings is not None else ""
            raise UserError(f"what is '{word}'? {remark}see {args.parser.prog} --help")
    if settings is not None:
        _check_source(args.source, settings)
        _check_whole([*settings, *unplaced])


def _unknown_option(word: str, after: str, options: Sequence[str], takes_settings: bool) -> UserError:
    if not takes_settings or difflib.get_close_matches(word, options, cutoff=0.75):
        return unknown("option", word, options)
    name, _, value = word.lstrip("-").partition("=")
    return UserError(f"unknown option '{word}': a setting has no dashes, write {name}={value or after}")


def _check_source(source: str, settings: Sequence[str]) -> None:
    """SOURCE comes before the settings."""
    if "=" in source and not source.endswith((".yaml", ".yml")):
        later = next(filter(_is_source, settings), "fedavg.digits")
        raise UserError(f"SOURCE comes before the settings, got '{source}': write {later} {source}")


def _check_whole(settings: Sequence[str]) -> None:
    """A setting is one word to the shell: no spaces around '=', quotes around a value with spaces."""
    for place, word in enumerate(settings):
        following = settings[place + 1] if place + 1 < len(settings) else None
        if re.search("[“”‘’]", word):
            raise UserError(f"quotes must be straight ones, got {word}: write ' or leave them out")
        if word.startswith("=") and place:
            raise _spaces(settings[place - 1], word[1:] or following)
        if following is not None and "=" not in following:
            if _open_brackets(word) > 0:
                key, _, value = next(_grown(settings[place:]), word).partition("=")
                raise UserError(f"a value with spaces needs quotes: write {key}='{value}'")
            if word.endswith("=") or not ("=" in word or _is_source(word) or _is_source(following)):
                raise _spaces(word.removesuffix("="), following)


def _spaces(key: str, value: str | None) -> UserError:
    return UserError(f"a setting is one word, key=value: write {key}={value or '...'}")


def _grown(words: Sequence[str]) -> Iterator[str]:
    """The first words joined, as soon as their brackets are closed."""
    for end in range(2, len(words) + 1):
        joined = " ".join(words[:end])
        if _open_brackets(joined) == 0:
            yield joined


def _open_brackets(text: str) -> int:
    return sum(text.count(mark) for mark in "{[") - sum(text.count(mark) for mark in "}]")


def _is_source(word: str) -> bool:
    """Whether a word is a preset's name, or a file's."""
    from rayfl.loading.sources import presets

    return word.endswith((".yaml", ".yml")) or word in presets()
