"""What `ullage estimate` was given, one field for each of its parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.cli.output import Output, named_fields
from ullage.errors import SpecError
from ullage.estimate.training.layout import Layout
from ullage.estimate.training.recipe import Lora
from ullage.estimate.workloads.option_values import parse_count, split_count
from ullage.units import parse_bytes

if TYPE_CHECKING:
    from ullage.api.estimate import RecipeFields
    from ullage.api.serving import ServingFields

# What serving alone reads, and what training reads, too; the rest of the options is training's.
_SERVING = {
    "engine", "engine_version", "context", "users", "weights", "kv", "utilization", "memory",
    "block_size", "batched_tokens", "max_seqs", "eager", "cached", "lora_slots", "lora_rank",
    "draft",
}  # fmt: skip
_OUTPUT = {"output", "as_json", "force", "quiet"}
_BOTH = {"model", "gpu", "serve", "tensor", "which_gpu", "knobs", "time", "price", "interconnect",
         "html", *_OUTPUT}  # fmt: skip
# What is asked for alone, and what it takes besides.
_WORKLOADS = {
    "speech": {"model", "gpu", *_OUTPUT},
    "diffusion": {"model", "gpu", "batch", "image", "precision", *_OUTPUT},
    "index": {"model", "gpu", *_OUTPUT},
}
_ALONE = _WORKLOADS | {"list_models": set[str]()}
_FLAGS = {"model": "MODEL", "as_json": "--json", "list_models": "--models"}


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """The parameters of `ullage estimate`, named as there."""

    model: str | None
    gpu: str | None
    batch: int | None
    length: int | None
    image: int | None
    precision: str | None
    optimizer: str | None
    checkpointing: str | None
    attention: str | None
    accumulation: int | None
    gradients: str | None
    loss: str | None
    zeroes_late: bool
    packed: bool
    compile: bool
    library: str | None
    torch: str | None
    lora: int | None
    lora_targets: str | None
    lora_dtype: str | None
    lora_dropout: float | None
    quantize: str | None
    buckets: str | None
    data: int | None
    sharding: str | None
    tensor: int | None
    sequence_parallel: bool
    context_parallel: int | None
    expert_parallel: int | None
    pipeline: int | None
    micro_batches: int | None
    stage: int | None
    offload: bool
    nvme: bool
    serve: bool
    engine: str | None
    engine_version: str | None
    context: int | None
    users: int | None
    weights: str | None
    kv: str | None
    utilization: float | None
    memory: str | None
    block_size: int | None
    batched_tokens: int | None
    max_seqs: int | None
    eager: bool
    cached: bool
    lora_slots: str | None
    lora_rank: int | None
    draft: str | None
    speech: str | None
    diffusion: str | None
    index: str | None
    which_gpu: bool
    largest: str | None
    knobs: bool
    time: bool
    price: float | None
    interconnect: str | None
    list_models: bool
    output: Path | None
    html: Path | None
    as_json: bool
    force: bool
    quiet: bool

    @property
    def target(self) -> Output:
        """Where the result goes."""
        return Output(is_json=self.as_json, is_quiet=self.quiet, path=self.output, force=self.force)

    @property
    def layout(self) -> Layout:
        """How several GPUs share the training; what is not given is as for one."""
        fields: dict[str, Any] = {
            "data": self.data, "sharding": self.sharding, "tensor": self.tensor,
            "pipeline": self.pipeline, "sequence": self.sequence_parallel or None,
            "context": self.context_parallel, "expert": self.expert_parallel,
            "micro_batches": self.micro_batches, "stage": self.stage, "buckets": self.buckets,
            "offload": self.offload or None, "nvme": self.nvme or None,
        }  # fmt: skip
        return Layout(**{name: value for name, value in fields.items() if value is not None})

    @property
    def adapters(self) -> Lora | None:
        """What is trained beside frozen weights; None: all parameters are trained."""
        fields: dict[str, Any] = {
            "targets": tuple(name.strip() for name in self.lora_targets.split(","))
            if self.lora_targets else None,
            "dtype": self.lora_dtype, "dropout": self.lora_dropout,
            "is_quantized": True if self.quantize else None,
            "has_double_scales": False if self.quantize == "nf4" else None,
        }  # fmt: skip
        given = {name: value for name, value in fields.items() if value is not None}
        if self.lora is None:
            if given:
                raise SpecError(
                    "--lora-targets, --lora-dtype, --lora-dropout and --quantize say how adapters "
                    "are trained; add --lora RANK"
                )
            return None
        return Lora(rank=self.lora, **given)

    @property
    def recipe(self) -> RecipeFields:
        """The training, as `ullage.estimate_training` names it."""
        from ullage.api.estimate import RecipeFields

        return named_fields(
            self, RecipeFields, checkpointing=_parse_checkpointing(self.checkpointing),
            lora=self.adapters, zeroes_late=self.zeroes_late or None, packed=self.packed or None,
            compiled=self.compile or None,
        )  # fmt: skip

    @property
    def serving_plan(self) -> ServingFields:
        """The server, as `ullage.estimate_serving` names it."""
        from ullage.api.serving import ServingFields

        slots, rank = self._slots
        return named_fields(
            self, ServingFields,
            max_batched_tokens=self.batched_tokens, tensor_parallel=self.tensor,
            capacity_bytes=None if self.memory is None else parse_bytes(self.memory),
            has_graphs=False if self.eager else None, is_cached=True if self.cached else None,
            lora_slots=slots, lora_rank=rank,
        )  # fmt: skip

    @property
    def _slots(self) -> tuple[int | None, int | None]:
        """LoRA slots and their rank, of --lora-slots N[:RANK] and --lora-rank."""
        if self.lora_slots is None:
            return None, self.lora_rank
        word, rank = split_count("--lora-slots", self.lora_slots)
        if rank is not None and self.lora_rank is not None:
            raise SpecError(f"--lora-slots {self.lora_slots} has a rank; leave out --lora-rank")
        return parse_count("--lora-slots", word), rank or self.lora_rank

    @property
    def speech_counts(self) -> tuple[int, int | None]:
        """Streams, and the windows that are encoded at once, of --speech N[:AT_ONCE]."""
        word, at_once = split_count("--speech", self.speech or "")
        return parse_count("--speech", word), at_once

    @property
    def has_workload(self) -> bool:
        """Whether it is about speech, pictures or an index."""
        return any(getattr(self, name) is not None for name in _WORKLOADS)


def check_options(options: EstimateOptions) -> None:
    """Refuses options that have no effect on what is asked: they would be ignored."""
    names = [field.name for field in fields(options)]
    given = [name for name in names if getattr(options, name) not in (None, False)]
    kind = next((name for name in given if name in _ALONE), None)
    for name in given:
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        if kind is not None and name not in {kind, *_ALONE[kind]}:
            raise SpecError(
                f"{flag} has no effect on {_FLAGS.get(kind, f'--{kind}')}; leave it out"
            )
        if kind is None and name not in _BOTH and (name in _SERVING) != options.serve:
            raise SpecError(
                f"{flag} belongs to training; leave it out, or leave out --serve" if options.serve
                else f"{flag} belongs to serving; add --serve, or leave it out"
            )  # fmt: skip


def _parse_checkpointing(text: str | None) -> str | int | None:
    """A kind of checkpointing, or the number of blocks between two."""
    return int(text) if text is not None and text.isdecimal() else text
