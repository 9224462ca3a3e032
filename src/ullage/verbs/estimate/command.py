"""`ullage estimate`: estimates the memory for training a model from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

import click

from ullage.ground.protocol.option import ARGUMENT
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.estimate.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model that the command line names; None: those built in are listed."""

    model: str | None = ARGUMENT("", "[MODEL]", default=None)


@command(
    most_used=("gpu", "batch", "length", "checkpointing", "optimizer"),
)
def estimate_command(options: TrainingOptions, model: NamedModel, output: Output) -> int:
    """Estimate the memory for training MODEL from its configuration, without torch.

    \b
    ullage estimate llama-3.1-8b --gpu h200 --length 4096 --checkpointing full
    ullage estimate runs/7/config.json --length 2048 --batch 4 --which-gpu
    ullage estimate

    MODEL is a config.json or its folder, a built-in model, or a repository of the Hugging Face hub;
    without it, the built-in models are listed. For the exact memory of a program use `ullage run`,
    for a model that is served `ullage capacity`.

    With -o FILE.pickle the log of the training is written: a memory snapshot, for `ullage explain`
    and `ullage diff`.

    Exits with 0, or with 1 if even the lower bound does not fit on the GPU.
    """
    if model.model is None:
        return _list_models()
    from ullage.verbs.estimate.function import estimate_training

    output.check(".html", ".pickle", ".ullage")
    estimate = estimate_training.act(options)
    return output.give(estimate)


def _list_models() -> int:
    """One line a model: its name, how many parameters, and where its shape is from."""
    from ullage.facts.families.builtin import load_models

    for model in load_models().values():
        count = "" if model.parameters is None else f"{model.parameters:,}"
        click.echo(f"{model.name:24} {model.config.model_type:12} {count:>20}  {model.source}")
    return 0
