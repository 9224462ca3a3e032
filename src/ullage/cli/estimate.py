"""`ullage estimate`: what a model needs, at once, from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage.cli import flags
from ullage.cli.output import UNWRITABLE, Output, check_files, write_result
from ullage.errors import SpecError
from ullage.estimate.training.layout import SHARDINGS, Layout
from ullage.estimate.training.recipe import PRECISIONS

if TYPE_CHECKING:
    from ullage.api.estimate import Estimate, ServingAnswer

_COUNT = click.IntRange(min=1)
_SERVING = (
    "engine", "context", "users", "weights", "kv", "utilization", "block_size",
    "lora_slots", "lora_rank",
)  # fmt: skip
_BOTH = ("gpu", "which_gpu")


@click.command(
    "estimate",
    cls=flags.in_sections(
        {
            "The question": ("gpu", "which_gpu", "largest", "knobs", "list_models"),
            "Training": (
                "batch", "length", "image", "precision", "optimizer", "checkpointing", "attention",
                "accumulation",
            ),
            "Training on several GPUs": (
                "data", "sharding", "tensor", "sequence_parallel", "context_parallel",
                "expert_parallel", "pipeline", "micro_batches", "offload", "nvme",
            ),
            "Serving": (
                "serve", "engine", "context", "users", "weights", "kv", "utilization", "block_size",
                "lora_slots", "lora_rank",
            ),
            "What is written": ("output", "html", "as_json", "force", "quiet"),
        }
    ),
)  # fmt: skip
@click.argument("model", required=False)
@click.option("--gpu", metavar="NAME", help="Of `ullage gpus`; without one there is no verdict.")
@click.option("--batch", type=_COUNT, metavar="N", help="Samples of one pass; default: 1.")
@click.option("--length", type=_COUNT, metavar="N", help="Tokens of a sample.")
@click.option("--image", type=_COUNT, metavar="N", help="Pixels of an image's side.")
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Default: bf16.")
@click.option("--optimizer", metavar="NAME", help="Such as sgd, adamw, adamw-8bit; default: adamw.")
@click.option("--checkpointing", metavar="KIND", help="none, selective, full, or every N-th block.")
@click.option("--attention", type=click.Choice(("sdpa", "eager")), help="Default: sdpa.")
@click.option("--accumulation", type=_COUNT, metavar="N", help="Passes before each step.")
@click.option("--data", type=_COUNT, metavar="N", help="GPUs that have their own samples.")
@click.option("--sharding", type=click.Choice(SHARDINGS), help="What they share out; default: ddp.")
@click.option("--tensor", type=_COUNT, metavar="N", help="GPUs that divide each layer.")
@click.option("--sequence-parallel", is_flag=True, help="They divide norms and residuals, too.")
@click.option("--context-parallel", type=_COUNT, metavar="N", help="GPUs that share a sequence.")
@click.option("--expert-parallel", type=_COUNT, metavar="N", help="GPUs that divide the experts.")
@click.option("--pipeline", type=_COUNT, metavar="N", help="Stages, each with some layers.")
@click.option("--micro-batches", type=_COUNT, metavar="N", help="In a step of the pipeline.")
@click.option("--offload", is_flag=True, help="With fsdp: shards and states in host memory.")
@click.option("--nvme", is_flag=True, help="With --offload: on to disks (DeepSpeed's Infinity).")
@click.option("--serve", is_flag=True, help="Not training but serving: KV cache, users, context.")
@click.option("--engine", type=click.Choice(("vllm", "transformers")), help="Default: vllm.")
@click.option("--context", type=_COUNT, metavar="N", help="Tokens of the longest request.")
@click.option("--users", type=_COUNT, metavar="N", help="Requests of that length at once.")
@click.option("--weights", metavar="FORMAT", help="bf16, fp8, int8, int4, ...; default: as it is.")
@click.option(
    "--kv", metavar="FORMAT", help="Of keys and values: bf16, fp8, ...; default: 16 bits."
)
@click.option("--utilization", type=float, metavar="SHARE", help="Of the GPU, for the engine.")
@click.option("--block-size", type=_COUNT, metavar="N", help="Tokens of a block of the cache.")
@click.option("--lora-slots", type=_COUNT, metavar="N", help="LoRA adapters on the GPU at once.")
@click.option("--lora-rank", type=_COUNT, metavar="N", help="Largest rank of one; default: 16.")
@click.option("--which-gpu", is_flag=True, help="Also rank all GPUs.")
@click.option("--largest", type=click.Choice(("batch", "length", "image")), help="That fits.")
@click.option("--knobs", is_flag=True, help="Also say what would save most.")
@click.option("--models", "list_models", is_flag=True, help="List the models that are built in.")
@flags.document_output
@flags.html
@flags.as_json
@flags.force
@flags.quiet
def estimate_command(
    model: str | None,
    *,
    output: Path | None,
    html: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
    list_models: bool,
    checkpointing: str | None,
    data: int | None,
    sharding: str | None,
    tensor: int | None,
    sequence_parallel: bool,
    context_parallel: int | None,
    expert_parallel: int | None,
    pipeline: int | None,
    micro_batches: int | None,
    offload: bool,
    nvme: bool,
    serve: bool,
    **asked: Any,  # noqa: ANN401
) -> int:
    """Say at once what training MODEL needs, from its configuration: no torch, no GPU.

    \b
    ullage estimate llama-3.1-8b --gpu h200 --length 4096 --checkpointing full
    ullage estimate runs/7/config.json --length 2048 --batch 4 --which-gpu
    ullage estimate llama-3.1-8b --serve --gpu l40s --context 32768 --users 4

    MODEL is a config.json or its folder, a model of `ullage estimate --models`, or a repository of
    the Hugging Face hub. `ullage run` says it to the byte, for a program.

    Exits with 0, or with 1 if not even the least that it may need fits on the GPU.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    check_files(("--output", output), ("--html", html), force=force)
    if list_models:
        return _list_models()
    if model is None:
        raise SpecError("no model was named; `ullage estimate --models` lists those built in")
    serving = {name: asked.pop(name) for name in _SERVING}
    _check_side(serving if not serve else asked, is_serving=serve)
    if serve:
        plan = serving | {"tensor_parallel": tensor}
        plan |= {name: asked[name] for name in _BOTH}
        return _serve(model, plan, shown, html)
    from ullage.api.estimate import estimate_training

    said: dict[str, Any] = {
        "data": data, "sharding": sharding, "tensor": tensor, "pipeline": pipeline,
        "sequence": sequence_parallel or None, "context": context_parallel,
        "expert": expert_parallel,
        "micro_batches": micro_batches, "offload": offload or None, "nvme": nvme or None,
    }  # fmt: skip
    layout = Layout(**{name: value for name, value in said.items() if value is not None})
    found = estimate_training(model, checkpointing=_kind(checkpointing), layout=layout, **asked)
    is_written = _write(found, shown, html)
    if not is_written:
        return UNWRITABLE
    return 1 if found.fits is False else 0


def _check_side(others: dict[str, Any], *, is_serving: bool) -> None:
    """Refuses options of the other side, which would say nothing."""
    for name, value in others.items():
        if value not in (None, False) and name not in _BOTH:
            flag = f"--{name.replace('_', '-')}"
            raise SpecError(
                f"{flag} belongs to training; leave it out, or leave out --serve" if is_serving
                else f"{flag} belongs to serving; add --serve, or leave it out"
            )  # fmt: skip


def _serve(model: str, plan: dict[str, Any], output: Output, html: Path | None) -> int:
    """Serving's answer."""
    from ullage.api.estimate import estimate_serving
    from ullage.report.serving import print_serving, serving_line

    found = estimate_serving(model, **plan)

    is_written = write_result(
        output,
        lambda: found.document,
        lambda: output.show(
            found.estimate,
            serving_line,
            lambda one, console: print_serving(one, found.source, console, found.gpus),
        ),
        _write_page(found, html, output),
    )
    if not is_written:
        return UNWRITABLE
    return 1 if found.fits is False else 0


def _write_page(found: Estimate | ServingAnswer, html: Path | None, output: Output) -> list[object]:
    """Writes the page where one was asked for; returns the files that were written."""
    if html is None:
        return []
    from ullage.files import write_text

    return [write_text(found.html, html, force=output.force)]


def _kind(text: str | None) -> str | int | None:
    """A kind of checkpointing, or the number of blocks between two."""
    return int(text) if text is not None and text.isdecimal() else text


def _list_models() -> int:
    """One line a model: its name, how many parameters, and where its shape is from."""
    from ullage.models.builtin import load_models

    for model in load_models().values():
        count = "" if model.parameters is None else f"{model.parameters:,}"
        click.echo(f"{model.name:24} {model.config.model_type:12} {count:>20}  {model.source}")
    return 0


def _write(estimate: Estimate, output: Output, html: Path | None) -> bool:
    from ullage.report.estimate import estimate_line, print_estimate

    return write_result(
        output,
        lambda: estimate.document,
        lambda: output.show(estimate.answer, estimate_line, print_estimate),
        _write_page(estimate, html, output),
    )
