"""`ullage estimate`: estimates a model's memory from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from ullage.cli.options.command import command, flag_of
from ullage.cli.output import Output
from ullage.errors import SpecError
from ullage.protocol.options.estimate import ServingOptions, TrainingOptions, WorkloadOptions
from ullage.protocol.options.option import options_of

if TYPE_CHECKING:
    from ullage.api.estimate import WorkloadAnswer

LOGS: Final = (".pickle", ".ullage")
_OUTPUT = {"output", "as_json", "force", "quiet"}
# What is asked for alone, and what it takes besides.
_ALONE: Final[Mapping[str, set[str]]] = {
    "speech": {"model", "gpu", *_OUTPUT},
    "diffusion": {"model", "gpu", "batch", "image", "precision", *_OUTPUT},
    "index": {"model", "gpu", *_OUTPUT},
    "list_models": set(),
}


@command(
    most_used=("gpu", "batch", "length", "checkpointing", "serve"),
    outputs=("output", "html", "as_json", "force", "quiet"),
)
def estimate_command(
    training: TrainingOptions, serving: ServingOptions, asked: WorkloadOptions, output: Output
) -> int:
    """Estimate the memory for training or serving MODEL from its configuration, without torch.

    \b
    ullage estimate llama-3.1-8b --gpu h200 --length 4096 --checkpointing full
    ullage estimate runs/7/config.json --length 2048 --batch 4 --which-gpu
    ullage estimate llama-3.1-8b --serve --gpu l40s --context 32768 --users 4
    ullage estimate whisper-large-v3 --speech 32:8 --gpu l4

    MODEL is a config.json or its folder, a model of `ullage estimate --models`, or a repository of
    the Hugging Face hub. For the exact memory of a program use `ullage run`.

    With -o FILE.pickle the log of a training is written instead of the document: a memory snapshot,
    for `ullage explain` and `ullage diff`.

    Exits with 0, or with 1 if even the lower bound does not fit on the GPU.
    """
    output.check()
    _check_options(asked, training, serving, output)
    others = asked.serve, asked.speech, asked.diffusion, asked.index
    has_log = output.output is not None and output.output.suffix in LOGS
    if has_log and any(each not in (None, False) for each in others):
        raise SpecError(
            f"{str(output.output)!r} ends as a log, which only a training has; end it in .json"
        )
    if asked.list_models:
        return _list_models()
    if asked.model is None and asked.index is None:
        raise SpecError("no model was named; `ullage estimate --models` lists those built in")
    if any(getattr(asked, name) is not None for name in ("speech", "diffusion", "index")):
        from ullage.report.text.workloads import workload_blocks

        workload = _answer_workload(asked, training)
        return output.give(
            workload, workload_blocks(workload.estimate), exit_code=int(workload.fits is False)
        )
    if asked.serve:
        from ullage.api.serving import estimate_serving

        answer = estimate_serving.act(serving)
        return output.give(answer, answer.blocks(), exit_code=int(answer.fits is False))
    return _show_training(training, output)


def _check_options(asked: WorkloadOptions, *records: object) -> None:
    """Refuses options that have no effect on what is asked: they would be ignored."""
    training, serving = options_of(TrainingOptions), options_of(ServingOptions)
    options = {
        name: (getattr(record, name), default, option)
        for record in (asked, *records)
        for name, (_, default, option) in options_of(type(record)).items()
    }
    given = {
        name: option
        for name, (value, default, option) in options.items()
        if value not in (None, default)
    }
    kind = next((name for name in given if name in _ALONE), None)
    for name, option in given.items():
        flag = flag_of(name, option)
        if kind is not None and name not in {kind, *_ALONE[kind]}:
            raise SpecError(f"{flag} has no effect on {flag_of(kind, given[kind])}; leave it out")
        if kind is None and asked.serve and name in training and name not in serving:
            raise SpecError(f"{flag} belongs to training; leave it out, or leave out --serve")
        if kind is None and not asked.serve and name in serving and name not in training:
            raise SpecError(f"{flag} belongs to serving; add --serve, or leave it out")


def _show_training(options: TrainingOptions, output: Output) -> int:
    from ullage.api.estimate import estimate_training
    from ullage.report.text.estimate import estimate_blocks

    estimate = estimate_training.act(options)
    files = []
    if output.output is not None and output.output.suffix in LOGS:
        files = [estimate.explanation.export(output.output, force=output.force)]
        output = replace(output, output=None)
    return output.give(
        estimate, estimate_blocks(estimate.answer), files, exit_code=int(estimate.fits is False)
    )


def _answer_workload(asked: WorkloadOptions, options: TrainingOptions) -> WorkloadAnswer:
    """Speech, pictures or an index: what is served beside text."""
    from ullage.api.estimate import estimate_diffusion, estimate_index, estimate_speech
    from ullage.estimate.workloads.option_values import parse_count, split_count

    model = asked.model or ""
    if asked.index is not None:
        return estimate_index(asked.index, model=asked.model, gpu=options.gpu)
    if asked.speech is not None:
        word, at_once = split_count("--speech", asked.speech)
        streams = parse_count("--speech", word)
        return estimate_speech(model, streams, at_once=at_once, gpu=options.gpu)
    return estimate_diffusion(
        model,
        asked.diffusion or "",
        images=options.batch or 1,
        side=options.image or 512,
        precision=options.precision or "fp16",
        gpu=options.gpu,
    )


def _list_models() -> int:
    """One line a model: its name, how many parameters, and where its shape is from."""
    from ullage.models.builtin import load_models

    for model in load_models().values():
        count = "" if model.parameters is None else f"{model.parameters:,}"
        click.echo(f"{model.name:24} {model.config.model_type:12} {count:>20}  {model.source}")
    return 0
