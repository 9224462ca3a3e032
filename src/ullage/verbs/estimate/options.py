"""The options of `ullage estimate`, and of `ullage.estimate_training`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, Protocol, TypeAlias

from ullage.ground.protocol.option import Count, HelpSection, Names
from ullage.ground.protocol.plain import From

QUESTIONS, TRAINING, TIME = map(HelpSection, ("Questions", "Training", "Time"))
ADAPTERS, GPUS = map(HelpSection, ("Adapters", "Training on several GPUs"))

Precision: TypeAlias = Literal[
    "fp32", "bf16", "fp16", "amp-bf16", "amp-fp16", "mixed-bf16", "mixed-fp16"
]
Gradients: TypeAlias = Literal["same", "fp32", "both"]
Loss: TypeAlias = Literal["full", "chunked", "fused"]
Buckets: TypeAlias = Literal["copies", "views", "none"]
Sharding: TypeAlias = Literal["ddp", "zero1", "zero2", "fsdp"]

GPU = ("GPU to compare with (see `ullage gpus`).", "NAME")
WHICH_GPU = "Also rank all GPUs."
KNOBS = ("Print the full report: also what would save most.", "--full")
WITH_TIME = "Also predict the time of a step on the GPU."
PRICE = ("Price of a GPU-hour; implies --time.", "DOLLARS")
INTERCONNECT = ("Links between the GPUs; implies --time.", "TEXT")
TENSOR = ("Size of tensor parallelism.", "N")


class ModelConfig(Protocol):
    """A configuration that was read: `ullage.facts.families.config.Config`."""

    @property
    def model_type(self) -> str:
        """The architecture."""


def _read_checkpointing(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


Checkpointing: TypeAlias = Annotated[str | int, From(str), _read_checkpointing]
Model: TypeAlias = Annotated[str | ModelConfig, From(str)]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The settings of a model's training, and the questions asked of it.

    Attributes:
        model: a built-in name, a config.json or its folder, a repository of the hub; or a
            configuration that was read.
        clips_gradients: torch.nn.utils.clip_grad_norm_ comes before each step.
        keeps_gradients: zero_grad(set_to_none=False): gradients stay allocated.
        steps_in_backward: the optimizer steps each parameter as soon as it has its gradient, and
            frees the gradient.
    """

    model: Model
    _: KW_ONLY
    gpu: str | None = QUESTIONS(*GPU, complete="gpus")
    which_gpu: bool = QUESTIONS.switch(WHICH_GPU)
    largest: Literal["batch", "length", "image"] | None = QUESTIONS(
        "Also find the largest that fits."
    )
    knobs: bool = QUESTIONS.switch(*KNOBS)

    batch: Count | None = TRAINING("Samples per forward pass; default: 1.", "N")
    length: Count | None = TRAINING("Tokens per sample.", "N")
    image: Count | None = TRAINING("Pixels per side of an image.", "N")
    precision: Precision | None = TRAINING("Default: bf16.")
    gradients: Gradients | None = TRAINING("With mixed precision; default: same.")
    optimizer: str | None = TRAINING("For example sgd, adamw, adamw-8bit; default: adamw.", "NAME")
    checkpointing: Checkpointing | None = TRAINING(
        "none, selective, alternate, full, or N: every Nth block.", "KIND"
    )
    attention: Literal["sdpa", "eager"] | None = TRAINING("Default: sdpa.")
    accumulation: Count | None = TRAINING("Passes per optimizer step.", "N")
    zeroes_late: bool = TRAINING.switch("zero_grad() comes between forward and backward.")
    loss: Loss | None = TRAINING("Default: as in the library.")
    packed: bool = TRAINING.switch("Samples hold several texts: attention has a mask.")
    compile: bool = TRAINING.switch("The model is compiled by torch.compile.")
    library: str | None = TRAINING("Whose code: transformers, litgpt, megatron, ...", "NAME")
    torch: str | None = TRAINING("Of PyTorch; default: the newest for the GPU.", "VERSION")
    clips_gradients: bool = False
    keeps_gradients: bool = False
    steps_in_backward: bool = False

    time: bool = TIME.switch(WITH_TIME)
    price: float | None = TIME(*PRICE)
    interconnect: str | None = TIME(*INTERCONNECT)

    lora: Count | None = ADAPTERS("Train adapters of this rank alone.", "RANK")
    lora_targets: Names = ADAPTERS("Layers, or all-linear; default: q and v.", "NAMES", default=())
    lora_dtype: Literal["fp32", "bf16", "fp16"] | None = ADAPTERS("Of the adapters.")
    lora_dropout: float | None = ADAPTERS("Default: 0.", "SHARE")
    quantize: Literal["nf4", "nf4-dq"] | None = ADAPTERS("Frozen weights in 4 bits (QLoRA).")

    data: Count | None = GPUS("Size of data parallelism.", "N")
    sharding: Sharding | None = GPUS("What data parallelism shards; default: ddp.")
    buckets: Buckets | None = GPUS("Of DDP; default: copies.")
    tensor: Count | None = GPUS(*TENSOR)
    sequence_parallel: bool = GPUS.switch("Tensor parallelism also divides norms and residuals.")
    context_parallel: Count | None = GPUS("GPUs that share a sequence.", "N")
    expert_parallel: Count | None = GPUS("GPUs that share the experts.", "N")
    pipeline: Count | None = GPUS("Stages of the pipeline.", "N")
    stage: int | None = GPUS("Stage to estimate, from 0; default: the one that needs most.", "N")
    micro_batches: Count | None = GPUS("Micro-batches per step of the pipeline.", "N")
    offload: bool = GPUS.switch("With fsdp: keep shards and states in host memory.")
    nvme: bool = GPUS.switch("With --offload: move them to disks (ZeRO-Infinity).")
