"""`ullage estimate`: estimates a model's memory from its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import click

from ullage.cli.options import flags
from ullage.cli.options.estimate import EstimateOptions, check_options
from ullage.cli.output import check_files
from ullage.errors import SpecError
from ullage.estimate.training.layout import BUCKETS, SHARDINGS
from ullage.estimate.training.recipe import GRADIENTS, LOSSES, PRECISIONS

LOGS: Final = (".pickle", ".ullage")
_COUNT = click.IntRange(min=1)


@click.command(
    "estimate",
    cls=flags.in_sections(
        {
            "Most used": ("gpu", "batch", "length", "checkpointing", "serve"),
            "Questions": ("which_gpu", "largest", "knobs", "list_models"),
            "Training": (
                "image", "precision", "gradients", "optimizer", "attention", "accumulation",
                "zeroes_late", "loss", "packed", "compile", "library", "torch",
            ),
            "Time": ("time", "price", "interconnect"),
            "Adapters": (
                "lora", "lora_targets", "lora_dtype", "lora_dropout", "quantize",
            ),
            "Training on several GPUs": (
                "data", "sharding", "buckets", "tensor", "sequence_parallel", "context_parallel",
                "expert_parallel", "pipeline", "micro_batches", "offload", "nvme",
            ),
            "Serving": (
                "engine", "engine_version", "context", "users", "weights", "kv", "utilization",
                "memory", "block_size", "batched_tokens", "max_seqs", "eager", "cached",
                "lora_slots", "lora_rank", "draft",
            ),
            "Speech, pictures, retrieval": ("speech", "diffusion", "index"),
            "Output": ("output", "html", "as_json", "force", "quiet"),
        }
    ),
)  # fmt: skip
@click.argument("model", required=False)
@click.option("--gpu", metavar="NAME", help="GPU to compare with (see `ullage gpus`).")
@click.option("--batch", type=_COUNT, metavar="N", help="Samples per forward pass; default: 1.")
@click.option("--length", type=_COUNT, metavar="N", help="Tokens per sample.")
@click.option("--image", type=_COUNT, metavar="N", help="Pixels per side of an image.")
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Default: bf16.")
@click.option(
    "--optimizer", metavar="NAME", help="For example sgd, adamw, adamw-8bit; default: adamw."
)
@click.option(
    "--checkpointing",
    metavar="KIND",
    help="none, selective, alternate, full, or N: every Nth block.",
)
@click.option("--attention", type=click.Choice(("sdpa", "eager")), help="Default: sdpa.")
@click.option("--accumulation", type=_COUNT, metavar="N", help="Passes per optimizer step.")
@click.option(
    "--gradients", type=click.Choice(GRADIENTS), help="With mixed precision; default: same."
)
@click.option("--loss", type=click.Choice(LOSSES), help="Default: as the library has it.")
@click.option("--zeroes-late", is_flag=True, help="zero_grad() comes between forward and backward.")
@click.option("--packed", is_flag=True, help="Samples hold several texts: attention has a mask.")
@click.option("--compile", is_flag=True, help="The model is compiled by torch.compile.")
@click.option("--library", metavar="NAME", help="Whose code: transformers, litgpt, megatron, ...")
@click.option("--torch", metavar="VERSION", help="Of PyTorch; default: the newest for the GPU.")
@click.option("--lora", type=_COUNT, metavar="RANK", help="Train adapters of this rank alone.")
@click.option("--lora-targets", metavar="NAMES", help="Layers, or all-linear; default: q and v.")
@click.option("--lora-dtype", type=click.Choice(("fp32", "bf16", "fp16")), help="Of the adapters.")
@click.option("--lora-dropout", type=float, metavar="SHARE", help="Default: 0.")
@click.option(
    "--quantize", type=click.Choice(("nf4", "nf4-dq")), help="Frozen weights in 4 bits (QLoRA)."
)
@click.option("--buckets", type=click.Choice(BUCKETS), help="Of DDP; default: copies.")
@click.option("--data", type=_COUNT, metavar="N", help="Size of data parallelism.")
@click.option(
    "--sharding", type=click.Choice(SHARDINGS), help="What data parallelism shards; default: ddp."
)
@click.option("--tensor", type=_COUNT, metavar="N", help="Size of tensor parallelism.")
@click.option(
    "--sequence-parallel", is_flag=True, help="Tensor parallelism also divides norms and residuals."
)
@click.option("--context-parallel", type=_COUNT, metavar="N", help="GPUs that share a sequence.")
@click.option("--expert-parallel", type=_COUNT, metavar="N", help="GPUs that share the experts.")
@click.option("--pipeline", type=_COUNT, metavar="N", help="Stages of the pipeline.")
@click.option(
    "--micro-batches", type=_COUNT, metavar="N", help="Micro-batches per step of the pipeline."
)
@click.option("--offload", is_flag=True, help="With fsdp: keep shards and states in host memory.")
@click.option("--nvme", is_flag=True, help="With --offload: move them to disks (ZeRO-Infinity).")
@click.option("--serve", is_flag=True, help="Estimate serving: KV cache, users, context.")
@click.option("--engine", type=click.Choice(("vllm", "transformers")), help="Default: vllm.")
@click.option("--engine-version", metavar="VERSION", help="Of vLLM; default: the newest known.")
@click.option("--context", type=_COUNT, metavar="N", help="Tokens of the longest request.")
@click.option("--users", type=_COUNT, metavar="N", help="Concurrent requests of that length.")
@click.option(
    "--weights", metavar="FORMAT", help="bf16, fp8, int8, int4, ...; default: the model's own."
)
@click.option(
    "--kv", metavar="FORMAT", help="Format of keys and values: bf16, fp8, ...; default: 16 bits."
)
@click.option(
    "--utilization", type=float, metavar="SHARE", help="Share of the GPU that the engine uses."
)
@flags.memory
@click.option("--block-size", type=_COUNT, metavar="N", help="Tokens per cache block.")
@click.option("--batched-tokens", type=_COUNT, metavar="N", help="Tokens per step of the engine.")
@click.option("--max-seqs", type=_COUNT, metavar="N", help="Requests per step of the engine.")
@click.option("--eager", is_flag=True, help="Neither compiled nor CUDA graphs (enforce_eager).")
@click.option("--cached", is_flag=True, help="An earlier start has left vLLM's compile cache.")
@click.option("--lora-slots", metavar="N[:RANK]", help="LoRA adapters on the GPU at once.")
@click.option(
    "--lora-rank", type=_COUNT, metavar="N", help="Largest rank of an adapter; default: 16."
)
@click.option(
    "--draft", metavar="MODEL[:N]", help="Model that proposes N tokens ahead; default: 1."
)
@click.option("--speech", metavar="N[:AT_ONCE]", help="Streams of speech, and windows in a burst.")
@click.option(
    "--diffusion", metavar="PARTS", help="Make images: vae=MODEL,text=MODEL,offload=model,..."
)
@click.option(
    "--index", metavar="KIND:...", help="Index of embeddings: hnsw:vectors=10M,width=768,..."
)
@click.option("--which-gpu", is_flag=True, help="Also rank all GPUs.")
@click.option(
    "--largest",
    type=click.Choice(("batch", "length", "image")),
    help="Also find the largest that fits.",
)
@click.option("--knobs", is_flag=True, help="Also list what would save most.")
@click.option("--time", is_flag=True, help="Also predict the time of a step on the GPU.")
@click.option("--price", type=float, metavar="DOLLARS", help="Price of a GPU-hour; implies --time.")
@click.option("--interconnect", metavar="TEXT", help="Links between the GPUs; implies --time.")
@click.option("--models", "list_models", is_flag=True, help="List the built-in models.")
@flags.document_output
@flags.html
@flags.as_json
@flags.force
@flags.quiet
@flags.as_record(EstimateOptions)
def estimate_command(options: EstimateOptions) -> int:
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
    check_files(("--output", options.output), ("--html", options.html), force=options.force)
    check_options(options)
    if options.list_models:
        return _list_models()
    if options.has_workload:
        from ullage.cli.workloads import show_workload

        return show_workload(options)
    if options.model is None:
        raise SpecError("no model was named; `ullage estimate --models` lists those built in")
    if options.serve:
        from ullage.cli.serving import show_serving

        return show_serving(options, options.model)
    return _show_training(options, options.model)


def _show_training(options: EstimateOptions, model: str) -> int:
    from ullage.api.estimate import estimate_training
    from ullage.report.text.estimate import estimate_blocks

    estimate = estimate_training(
        model,
        gpu=options.gpu,
        which_gpu=options.which_gpu,
        largest=options.largest,
        knobs=options.knobs,
        time=options.time,
        price=options.price,
        interconnect=options.interconnect,
        **options.recipe,
    )
    target, files = options.target, []
    if target.path is not None and target.path.suffix in LOGS:
        files = [estimate.explanation.export(target.path, force=target.force)]
        target = replace(target, path=None)
    return target.give(
        estimate, estimate_blocks(estimate.answer), files, html=options.html,
        exit_code=int(estimate.fits is False),
    )  # fmt: skip


def _list_models() -> int:
    """One line a model: its name, how many parameters, and where its shape is from."""
    from ullage.models.builtin import load_models

    for model in load_models().values():
        count = "" if model.parameters is None else f"{model.parameters:,}"
        click.echo(f"{model.name:24} {model.config.model_type:12} {count:>20}  {model.source}")
    return 0
