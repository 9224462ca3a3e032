"""The options of `ullage capacity`, and of `ullage.capacity`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from ullage.ground.protocol.option import ARGUMENT, SETTINGS, Count, HelpSection, Size
from ullage.ground.protocol.plain import From
from ullage.verbs.estimate.options import (
    GPU,
    INTERCONNECT,
    KNOBS,
    PRICE,
    QUESTIONS,
    TENSOR,
    TIME,
    WHICH_GPU,
    WITH_TIME,
    Model,
    ModelConfig,
)
from ullage.verbs.run.options import MEMORY

REQUESTS, ENGINE = HelpSection("Requests"), HelpSection("Engine")
TRAFFIC, PICTURES = HelpSection("Traffic"), HelpSection("Pictures")


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """A model that is served, and on what; what has no flag is as of `ServingPlan`.

    Attributes:
        model: a text model, a speech model, the denoiser of a pipeline of diffusers, each as for
            `ullage.estimate_training`; or an index of embeddings, such as
            "hnsw:vectors=10M,width=768", whose width may be that of a model.
        parts: the other models of a pipeline of diffusers: its VAE, its text encoder.
    """

    model: Model
    parts: Sequence[str] = ARGUMENT("", "[PART]...", default=())
    _: KW_ONLY
    gpu: str | None = QUESTIONS(*GPU, complete="gpus")
    which_gpu: bool = QUESTIONS.switch(WHICH_GPU)
    knobs: bool = QUESTIONS.switch(*KNOBS)

    users: Count | None = REQUESTS(
        "Concurrent requests of the longest length; streams of speech; images at once.", "N"
    )
    context: Count | None = REQUESTS("Tokens of the longest request.", "N")
    image: Count | None = PICTURES("Pixels per side of an image; default: 512.", "N")
    offload: Literal["none", "model", "sequential"] | None = PICTURES(
        "Weights wait in host memory for their stage; default: none."
    )
    guidance: bool = SETTINGS("The denoiser's batch is twice the images.", default=True)
    tiles: bool = SETTINGS.switch("The VAE decodes tiles.")

    traffic: str | None = TRAFFIC(
        "Forecast preemptions and latencies, without the engine.", "FILE|KIND:..."
    )
    slo: str | None = TRAFFIC("Objective of the traffic, for example ttft=1s,tpot=50ms.", "TEXT")

    time: bool = TIME.switch(WITH_TIME)
    price: float | None = TIME(*PRICE)
    interconnect: str | None = TIME(*INTERCONNECT)

    engine: Literal["vllm", "transformers"] | None = ENGINE("Default: vllm.")
    engine_version: str | None = ENGINE("Of vLLM; default: the newest known.", "VERSION")
    tensor: Count | None = ENGINE(*TENSOR)
    weights: str | None = ENGINE("bf16, fp8, int8, int4, ...; default: the model's own.", "FORMAT")
    kv: str | None = ENGINE(
        "Format of keys and values: bf16, fp8, ...; default: 16 bits.", "FORMAT"
    )
    kv_bytes: Size | None = ENGINE("The cache on each GPU, as a start printed it.", "SIZE")
    utilization: float | None = ENGINE("Share of the GPU that the engine uses.", "SHARE")
    memory: Size | None = ENGINE(*MEMORY)
    block_size: Count | None = ENGINE("Tokens per cache block.", "N")
    batched_tokens: Count | None = ENGINE("Tokens per step of the engine.", "N")
    max_seqs: Count | None = ENGINE(
        "Requests per step of the engine; windows of speech that are encoded at once.", "N"
    )
    eager: bool = ENGINE.switch("Neither compiled nor CUDA graphs (enforce_eager).")
    cached: bool = SETTINGS.switch("An earlier start has left vLLM's compile cache.")
    lora_slots: Annotated[int | str | None, From(str)] = ENGINE(
        "LoRA adapters on the GPU at once, and their largest rank; default: 16.", "N[:RANK]"
    )
    draft: Annotated[str | ModelConfig | None, From(str)] = ENGINE(
        "Model that proposes N tokens ahead; default: 1.", "MODEL[:N]"
    )
    has_prefix_caching: bool | None = None
    is_async: bool | None = None
    speculated: int | None = None
    draft_bytes: int | None = None
    lora_bytes: int | None = None
    lora_rank: Count | None = None
    encoded: int | None = None
