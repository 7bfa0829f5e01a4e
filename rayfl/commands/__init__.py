"""The commands, one file each: its help, its arguments, what it does.

Heavy modules are imported by the command that needs them, so that --help is quick.
"""

from rayfl.commands import cost, data, list_names, partition, run, show, sweep, ui
from rayfl.commands.command import Command

COMMANDS: tuple[Command, ...] = (
    run.COMMAND,
    sweep.COMMAND,
    list_names.COMMAND,
    show.COMMAND,
    partition.COMMAND,
    cost.COMMAND,
    data.COMMAND,
    ui.COMMAND,
)

__all__ = ["COMMANDS", "Command"]
