"""`ullage nvml`: starts a program that sees simulated GPUs through NVML."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from ullage.cli.options import flags
from ullage.cli.output import FILE
from ullage.errors import EnvironmentProblem, SpecError


@click.command("nvml")
@click.argument("directory", type=FILE, metavar="DIR")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM [ARGUMENTS]]")
@click.option("--gpu", metavar="NAME", help="First describe DIR as a machine with this GPU.")
@click.option("--gpus", type=int, metavar="N", help="Number of identical GPUs; default: 1.")
@flags.memory
@flags.capability
def nvml_command(
    directory: Path,
    command: tuple[str, ...],
    *,
    gpu: str | None,
    gpus: int | None,
    memory: str | None,
    capability: str | None,
) -> int:
    """Start a program that sees simulated GPUs through NVML.

    \b
    ullage run --gpu a100-80gb --gpus 8 --nvml /tmp/node -- train.py &
    ullage nvml /tmp/node -- nvitop
    eval "$(ullage nvml /tmp/node)"

    DIR is that of one or more `ullage run --nvml DIR`: the program sees the memory and the
    processes of all of them. Without a program, prints the variable that a shell needs to export.
    """
    if gpu is None and (gpus, memory, capability) != (None, None, None):
        raise SpecError("--gpus, --memory and --capability describe a GPU; name it with --gpu")
    if gpu is None:
        from ullage.phantom.nvml.machine import find_machine

        find_machine(directory)
    else:
        _describe(directory, gpu, gpus=gpus, memory=memory, capability=capability)
    path = str(directory.absolute())
    if not command:
        rest = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        click.echo(f"export LD_LIBRARY_PATH={shlex.quote(path)}{rest}")
        return 0
    return _become(command, path)


def _describe(
    directory: Path, gpu: str, *, gpus: int | None, memory: str | None, capability: str | None
) -> None:
    """Makes the machine, or joins one that has the same GPU."""
    from ullage.phantom.device import choose_device
    from ullage.phantom.nvml.machine import machine_of, open_machine

    device = choose_device(gpu, memory=memory, capability=capability)
    num_devices = 1 if gpus is None else gpus
    open_machine(directory, machine_of(device.environment_text(), "", num_devices, None))


def _become(command: tuple[str, ...], path: str) -> int:
    """Runs the program in place of this one; raises EnvironmentProblem where there is none."""
    from ullage.phantom.program import put_before

    environment = dict(os.environ)
    put_before(environment, "LD_LIBRARY_PATH", path)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise EnvironmentProblem(
            f"{command[0]!r} cannot be started: {error.strerror or error}"
        ) from None
