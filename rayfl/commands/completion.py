"""``rayfl completion``: what lets the TAB key finish commands, presets, files and methods."""

import argparse
from string import Template
from typing import Any

from rayfl.commands.command import DONE, Command, print_json

_BASH = Template("""\
_rayfl_matching() {
  compgen -f -- "$$1" | grep -E '\\.ya?ml$$'
  compgen -d -- "$$1"
}
_rayfl_yaml_files() {
  _rayfl_matching "$$1"
  [ -n "$$1" ] || compgen -G 'tune_configs/*.yaml'
}
_rayfl_source_files() {
  compgen -W '$presets' -- "$$1"
  _rayfl_matching "$$1"
}
_rayfl_settings() {
  local words="$${COMP_WORDS[*]:0:COMP_CWORD+1}"
  case "$$words" in
    *' algorithm.name =') compgen -W '$methods' ;;
    *' algorithm.name = '*) compgen -W '$methods' -- "$$1" ;;
  esac
}
""")
"""``=`` ends a word for bash, so a setting is three of them. By the ``_file`` in a function's name shtab
knows to end folders in a slash."""

_ZSH = Template("""\
_rayfl_yaml_files() { _files -g '*.(yaml|yml)' }
_rayfl_source_files() {
  compadd -- $presets
  _rayfl_yaml_files
}
_rayfl_settings() {
  compset -P 'algorithm.name=' && compadd -- $methods
}
""")


def completion(args: argparse.Namespace) -> int:
    """The script for a shell."""
    import shtab

    from rayfl.cli import make_parser
    from rayfl.loading.sources import presets

    names = presets()
    methods = dict.fromkeys(name.partition(".")[0] for name in names)
    words = {"presets": " ".join(names), "methods": " ".join(methods)}
    # shtab says str, and takes the shell's entry of a mapping.
    preamble: Any = {"bash": _BASH.substitute(words), "zsh": _ZSH.substitute(words)}
    script = shtab.complete(make_parser(), args.shell, preamble=preamble)
    if args.json:
        print_json({"shell": args.shell, "script": script})
    else:
        print(script)
    return DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    """What ``rayfl completion`` takes."""
    parser.add_argument("shell", choices=tuple(EXAMPLES), metavar="shell", help=" or ".join(EXAMPLES))


EXAMPLES = {
    "bash": """\
  eval "$(rayfl completion bash)"      # in this shell; for all new ones:
  mkdir -p ~/.local/share/bash-completion/completions
  rayfl completion bash > ~/.local/share/bash-completion/completions/rayfl""",
    "zsh": """\
  mkdir -p ~/.zfunc && rayfl completion zsh > ~/.zfunc/_rayfl
  # and once in ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit""",
}

COMMAND = Command(
    name="completion",
    help="Print what lets the TAB key finish commands, presets and files.",
    examples="\n".join(EXAMPLES.values()),
    arguments=arguments,
    main=completion,
)
