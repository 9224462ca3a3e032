"""`ullage estimate`: what a model needs, at once, from its configuration."""

from __future__ import annotations

import click

from ullage.cli.options import flags
from ullage.cli.options.estimate import EstimateOptions, check_side
from ullage.cli.output import UNWRITABLE, check_files, write_result
from ullage.errors import SpecError
from ullage.estimate.training.layout import SHARDINGS
from ullage.estimate.training.recipe import PRECISIONS

_COUNT = click.IntRange(min=1)


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
@click.option("--which-gpu", is_flag=True, help="Also rank all GPUs.")
@click.option("--largest", type=click.Choice(("batch", "length", "image")), help="That fits.")
@click.option("--knobs", is_flag=True, help="Also say what would save most.")
@click.option("--models", "list_models", is_flag=True, help="List the models that are built in.")
@flags.document_output
@flags.html
@flags.as_json
@flags.force
@flags.quiet
@flags.as_record(EstimateOptions)
def estimate_command(options: EstimateOptions) -> int:
    """Say at once what training MODEL needs, from its configuration: no torch, no GPU.

    \b
    ullage estimate llama-3.1-8b --gpu h200 --length 4096 --checkpointing full
    ullage estimate runs/7/config.json --length 2048 --batch 4 --which-gpu
    ullage estimate llama-3.1-8b --serve --gpu l40s --context 32768 --users 4

    MODEL is a config.json or its folder, a model of `ullage estimate --models`, or a repository of
    the Hugging Face hub. `ullage run` says it to the byte, for a program.

    Exits with 0, or with 1 if not even the least that it may need fits on the GPU.
    """
    check_files(("--output", options.output), ("--html", options.html), force=options.force)
    if options.list_models:
        return _list_models()
    if options.model is None:
        raise SpecError("no model was named; `ullage estimate --models` lists those built in")
    check_side(options)
    if options.serve:
        from ullage.cli.serving import show_serving

        return show_serving(options, options.model)
    return _show_training(options, options.model)


def _show_training(options: EstimateOptions, model: str) -> int:
    """The answer about training."""
    from ullage.api.estimate import estimate_training
    from ullage.files import write_text
    from ullage.report.text.estimate import estimate_line, print_estimate

    estimate = estimate_training(
        model,
        gpu=options.gpu,
        which_gpu=options.which_gpu,
        largest=options.largest,
        knobs=options.knobs,
        **options.recipe,
    )
    html, shown = options.html, options.shown
    pages = [] if html is None else [write_text(estimate.html, html, force=options.force)]
    is_written = write_result(
        shown,
        lambda: estimate.document,
        lambda: shown.show(estimate.answer, estimate_line, print_estimate),
        pages,
    )
    if not is_written:
        return UNWRITABLE
    return 1 if estimate.fits is False else 0


def _list_models() -> int:
    """One line a model: its name, how many parameters, and where its shape is from."""
    from ullage.models.builtin import load_models

    for model in load_models().values():
        count = "" if model.parameters is None else f"{model.parameters:,}"
        click.echo(f"{model.name:24} {model.config.model_type:12} {count:>20}  {model.source}")
    return 0
