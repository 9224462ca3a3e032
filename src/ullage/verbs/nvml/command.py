"""`ullage nvml`: starts a program that sees simulated GPUs through NVML."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import click

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.verbs.command_line.command import command
from ullage.verbs.nvml.options import NvmlOptions


@command()
def nvml_command(options: NvmlOptions) -> int:
    """Start a program that sees simulated GPUs through NVML.

    \b
    ullage run --gpu a100-80gb --gpus 8 --nvml /tmp/node -- train.py &
    ullage nvml /tmp/node -- nvitop
    eval "$(ullage nvml /tmp/node)"

    DIR is that of one or more `ullage run --nvml DIR`: the program sees the memory and the
    processes of all of them. Without a program, prints the variable that a shell needs to export.
    """
    if options.gpu is None and options.gpus is not None:
        raise SpecError("--gpus is of a GPU that is described; name it with --gpu")
    if options.gpu is None:
        from ullage.players.phantom.nvml.machine import find_machine

        find_machine(options.directory)
    else:
        _describe(options)
    path = str(options.directory.absolute())
    if not options.command:
        rest = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        click.echo(f"export LD_LIBRARY_PATH={shlex.quote(path)}{rest}")
        return 0
    return _become(options.command, path)


def _describe(options: NvmlOptions) -> None:
    """Makes the machine, or joins one that has the same GPU."""
    from ullage.players.phantom.device import choose_device
    from ullage.players.phantom.nvml.machine import machine_of, open_machine

    device = choose_device(options.gpu, memory=options.memory, capability=options.capability)
    num_devices = 1 if options.gpus is None else options.gpus
    machine = machine_of(device.environment_text(), "", num_devices, None)
    open_machine(options.directory, machine)


def _become(words: Sequence[str], path: str) -> int:
    """Runs the program in place of this one; raises EnvironmentProblem where there is none."""
    from ullage.players.phantom.program import put_before

    environment = dict(os.environ)
    put_before(environment, "LD_LIBRARY_PATH", path)
    try:
        os.execvpe(words[0], [*words], environment)
    except OSError as error:
        raise EnvironmentProblem(
            f"{words[0]!r} cannot be started: {error.strerror or error}"
        ) from None
