"""`ullage doctor`: what a run would find on this machine."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec

import click

from ullage.ground.errors import UllageError
from ullage.ground.version import __version__
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.command_line.streams import ANSWER_IS_NO, say
from ullage.verbs.doctor.options import DoctorOptions

_TYPES = {"str": "string", "str | None": ["string", "null"], "tuple[str, ...]": "array"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The JSON document `ullage.doctor/1`, beside its schema.

    Attributes:
        torch: its version and place; None: there is none that a program could import.
        driver: the version of NVIDIA's driver; None: NVML is not here.
        gpus: the names of the GPUs of this machine.
        extras: parts of ullage whose packages are not installed.
        refusal: why `ullage run` would be refused; None: it would start.
    """

    ullage: str
    python: str
    system: str
    torch: str | None
    driver: str | None
    gpus: tuple[str, ...]
    extras: tuple[str, ...]
    refusal: str | None


# A package of each extra.
_EXTRAS = {
    "fit": "highspy",
    "front": "uvicorn",
    "measure": "cloudpickle",
    "plot": "matplotlib",
    "ui": "starlette",
    "watch": "pynvml",
}


@command(outputs=("as_json",))
def doctor_command(options: DoctorOptions, output: Output) -> int:
    """Say which torch, driver and GPU are here, and why a run would be refused.

    Starts no program and imports no torch. Exits with 1 where `ullage run` would be refused.
    """
    if options.schema:
        click.echo(json.dumps(document_schema(), indent=2))
        return 0
    diagnosis = diagnose(os.fspath(options.python or sys.executable))
    if output.as_json:
        click.echo(json.dumps({"schema": "ullage.doctor/1", **asdict(diagnosis)}, indent=2))
    else:
        say("\n".join(_lines(diagnosis)))
    return 0 if diagnosis.refusal is None else ANSWER_IS_NO


def diagnose(python: str) -> Diagnosis:
    """Looks at this machine, and at the torch of an interpreter."""
    from ullage.ground.native.libraries import LIBRARY_DIR
    from ullage.players.inside.process.real_device import driver_version, gpu_names
    from ullage.players.phantom.launch import check_platform
    from ullage.players.phantom.torch_build import check_torch, find_torch

    torch = refusal = None
    try:
        check_platform()
        build = find_torch(python)
        torch = f"{build.version} in {os.fspath(build.directory)}"
        check_torch(build, LIBRARY_DIR)
    except UllageError as error:
        refusal = str(error)
    missing = tuple(extra for extra, package in _EXTRAS.items() if find_spec(package) is None)
    return Diagnosis(
        ullage=__version__, python=f"{platform.python_version()} in {sys.executable}",
        system=f"{platform.system()} {platform.machine()}", torch=torch,
        driver=driver_version(), gpus=gpu_names(), extras=missing, refusal=refusal,
    )  # fmt: skip


def _lines(diagnosis: Diagnosis) -> tuple[str, ...]:
    extras = ",".join(diagnosis.extras)
    return (
        f"ullage  {diagnosis.ullage}, Python {diagnosis.python}, {diagnosis.system}",
        f"torch   {diagnosis.torch or 'none that a program could import'}",
        f"driver  {diagnosis.driver or 'none; `ullage run` needs none'}",
        f"GPUs    {', '.join(diagnosis.gpus) or 'none; `ullage run` needs none'}",
        f"extras  {f'not installed: ullage[{extras}]' if extras else 'all are installed'}",
        f"run     {'would start' if diagnosis.refusal is None else diagnosis.refusal}",
    )


def document_schema() -> dict[str, object]:
    """The JSON schema of `ullage.doctor/1`, from the fields of its record."""
    types = {field.name: _TYPES[str(field.type)] for field in fields(Diagnosis)}
    properties: dict[str, object] = {
        name: {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
        for name, kind in types.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"schema": {"const": "ullage.doctor/1"}, **properties},
        "required": ["schema", *types],
        "additionalProperties": False,
    }
