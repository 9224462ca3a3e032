"""`ullage gpus`: the GPUs that ullage knows."""

from __future__ import annotations

import json

import click
from rich.console import Console

from ullage.gpus import find_gpu, load_catalog
from ullage.report.gpus import gpus_document, print_gpu, print_gpus


@click.command("gpus")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, ullage.gpus/1.")
def gpus_command(name: str | None, *, as_json: bool) -> None:
    """List the GPUs that ullage knows, or show everything about one.

    NAME is a slug such as h100-80gb, an alias, or the name that CUDA gives the GPU.
    """
    gpus = load_catalog() if name is None else (find_gpu(name),)
    if as_json:
        click.echo(json.dumps(gpus_document(gpus), indent=2, ensure_ascii=False))
    elif name is None:
        print_gpus(gpus, Console())
    else:
        print_gpu(gpus[0], Console())
