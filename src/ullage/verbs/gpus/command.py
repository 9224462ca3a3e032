"""`ullage gpus`: lists the known GPUs."""

from __future__ import annotations

import json

import click

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.gpus.options import GpusOptions


@command(outputs=("as_json",))
def gpus_command(options: GpusOptions, output: Output) -> None:
    """List the known GPUs, or show everything about one.

    NAME is a slug such as h100-80gb, an alias, or the name that CUDA gives the GPU; or a group to
    list: a generation (hopper), a compute capability (8.9), a market (workstation), a maker (amd).
    """
    from ullage.answers.text import print_blocks
    from ullage.facts.gpus import Gpu, find_entry, find_group
    from ullage.verbs.gpus.document import gpus_document
    from ullage.verbs.gpus.text import gpu_blocks, gpus_blocks

    gpus, others = find_group(options.name)
    entry = None if gpus or others or options.name is None else find_entry(options.name)
    if entry is not None:
        gpus, others = ((entry,), ()) if isinstance(entry, Gpu) else ((), (entry,))
    if output.as_json:
        click.echo(json.dumps(gpus_document(gpus, others), indent=2, ensure_ascii=False))
    elif entry is None:
        print_blocks(gpus_blocks(gpus, others))
    else:
        print_blocks(gpu_blocks(entry))
