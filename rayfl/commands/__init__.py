"""The commands, one file each: its help, its arguments, what it does.

Heavy modules are imported by the command that needs them, so that --help is quick.
"""

from rayfl.commands import (
    completion,
    cost,
    data,
    doctor,
    jobs,
    list_names,
    new_method,
    partition,
    run,
    show,
    submit,
    sweep,
    tune,
    ui,
)
from rayfl.commands.command import Command

COMMANDS: tuple[Command, ...] = (
    run.COMMAND,
    sweep.COMMAND,
    tune.COMMAND,
    list_names.COMMAND,
    show.COMMAND,
    partition.COMMAND,
    cost.COMMAND,
    data.COMMAND,
    ui.COMMAND,
    new_method.COMMAND,
    completion.COMMAND,
    submit.COMMAND,
    jobs.COMMAND,
    doctor.COMMAND,
)

__all__ = ["COMMANDS", "Command"]
