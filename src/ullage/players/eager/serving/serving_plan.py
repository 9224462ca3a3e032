"""How a model is to be served, and the records of the answer: see serving.py."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final

from ullage.facts.families.config import Config
from ullage.facts.families.kv_cache import PRECISIONS
from ullage.facts.gpus.gpu import Entry
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Mark, figure
from ullage.players.eager.term import Term, Verdict

ENGINES: Final = ("vllm", "transformers")
_VLLM: Final = {
    "engine_version", "block_size", "kv_bytes", "has_prefix_caching", "max_seqs", "has_graphs",
    "is_cached", "is_async", "speculated", "lora_slots", "draft",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The plan of a server for a model.

    Attributes:
        gpu: the GPU to serve on; None: only what each request needs is estimated.
        context: tokens of the longest request, prompt and answer together (max_model_len).
        users: requests of that length at once; None: as many as fit.
        tensor_parallel: GPUs that share every layer.
        engine: "vllm" or "transformers" (continuous batching).
        engine_version: of vLLM, such as "0.10.2"; None: the newest that is known.
        weights: a format of serving/model_weights.py, or "auto": the checkpoint's format.
        kv: a precision of facts/families/kv_cache.py, or "auto": 16 bits.
        block_size: tokens of a block; None: the engine's default.
        utilization: share of the GPU that the engine takes; None: its default.
        kv_bytes: bytes for vLLM's cache on each GPU, as a start of vLLM prints them; None: what the
            other terms leave.
        has_prefix_caching: the engine reuses blocks of earlier requests (prefix cache).
        max_batched_tokens: tokens of one step; None: the engine's default for the GPU.
        max_seqs: requests of one step; None: the engine's default for the GPU.
        has_graphs: the model is compiled and CUDA graphs are captured (not enforce_eager).
        is_cached: an earlier start has left its compile cache; None: it is not known, so that the
            interval holds both and the likely start is a first one.
        capacity_bytes: memory of the GPU where it is not the catalogue's, as under WSL2.
        is_async: a step is scheduled while the previous one still runs.
        speculated: tokens that a draft proposes in each step (speculative decoding).
        draft_bytes: weights of the draft, and other memory that is in use all the time.
        lora_slots: adapters that vLLM keeps on the GPU at once (max_loras); 0: LoRA is off.
        lora_rank: the largest rank of an adapter (max_lora_rank); None: vLLM's default, 16.
        lora_bytes: memory of the adapter slots; computed where lora_slots is given.
        draft: the configuration of a model that proposes `speculated` tokens; its weights and its
            cache are counted; None: there is none.
        encoded: positions of an encoder-decoder's input; None: the most it accepts.
    """

    gpu: Annotated[Entry | None, Mark.NO_KEY] = None
    context: int = 8192
    users: int | None = None
    tensor_parallel: int = 1
    engine: str = "vllm"
    engine_version: str | None = None
    weights: str = "auto"
    kv: str = "auto"
    block_size: int | None = None
    utilization: float | None = None
    kv_bytes: int | None = None
    has_prefix_caching: bool = True
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    has_graphs: bool = True
    is_cached: bool | None = None
    capacity_bytes: int | None = None
    is_async: bool = True
    speculated: int = 0
    draft_bytes: int = 0
    lora_bytes: int = 0
    encoded: int | None = None
    lora_slots: int = 0
    lora_rank: int | None = None
    draft: Annotated[Config | None, Mark.NO_KEY] = None

    def __post_init__(self) -> None:
        """Refuses plans that are not possible."""
        least = {"context": 1, "users": 1, "tensor_parallel": 1, "block_size": 1}
        least |= {"max_batched_tokens": 1, "max_seqs": 1, "kv_bytes": 1, "speculated": 0}
        least |= {"capacity_bytes": 1, "draft_bytes": 0, "lora_bytes": 0, "encoded": 0}
        least |= {"lora_slots": 0, "lora_rank": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise SpecError(f"{name}: found {value}, expected at least {lowest}")
        if self.engine not in ENGINES:
            raise SpecError(f"engine: found {self.engine!r}, expected {' or '.join(ENGINES)}")
        for field in fields(self):
            is_given = getattr(self, field.name) != field.default
            if self.engine != "vllm" and field.name in _VLLM and is_given:
                raise SpecError(f"{field.name}: only vLLM reads it; leave out engine, or it")
        if self.draft is not None and not self.speculated:
            raise SpecError("draft: expected at least 1 speculated token")
        if self.lora_rank is not None and not self.lora_slots:
            raise SpecError("lora_rank: there are no slots of that rank; add lora_slots")
        if self.kv != "auto" and self.kv not in PRECISIONS:
            raise SpecError(f"kv: found {self.kv!r}, expected auto, {', '.join(PRECISIONS)}")
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise SpecError(f"utilization: found {self.utilization}, expected above 0, at most 1")

    @figure
    def draft_name(self) -> Annotated[str | None, As("draft")]:
        """The model that proposes tokens; None: there is none."""
        return None if self.draft is None else self.draft.name

    @property
    def precision(self) -> str:
        """The precision of keys and values."""
        return "bf16" if self.kv == "auto" else self.kv


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers of one kind.

    Attributes:
        name: such as "sliding window of 1,024".
        num_layers: number of these layers.
        token_bytes: bytes that they keep for each token they see, on one rank.
        request_bytes: the least that a request of the plan's context needs in them, on one rank.
    """

    name: str
    num_layers: int
    token_bytes: int
    request_bytes: int


@dataclass(frozen=True, slots=True)
class ServingEstimate:
    """The memory of serving a model on one GPU.

    Attributes:
        model: the name that the user gave.
        num_parameters: parameters of the model, all ranks together.
        plan: how the model is served.
        capacity_bytes: memory of the GPU; None where none was given.
        terms: the parts of the GPU's memory; their `bytes` add up to it. Without a GPU: the
            weights alone.
        reason: why the verdict is what it is, in a sentence.
        remarks: assumptions and omissions, each a sentence.
        kv_groups: what the layers keep.
        kv_bytes: bytes for the cache, (low, likely, high); empty without a GPU.
        num_blocks: number of blocks (vLLM) or sectors (transformers), (low, likely, high).
        block_size: tokens of a block.
        block_bytes: bytes of one block on one rank.
        tokens: size of the cache in tokens, as the engine prints it, (low, likely, high).
        concurrency: requests of the plan's context, as the engine prints it, (low, likely, high).
        users: whole requests of the plan's context that fit at once, (low, likely, high).
        longest: the longest context for one user, (low, likely, high); never beyond what the model
            was trained for.
        verdict: whether the plan fits; None without a GPU.
    """

    model: Annotated[str, Mark.NO_KEY]
    num_parameters: Annotated[int, Mark.NO_KEY]
    plan: ServingPlan
    capacity_bytes: int | None
    terms: tuple[Term, ...]
    reason: str
    remarks: tuple[str, ...]
    kv_groups: tuple[KvGroup, ...] = ()
    kv_bytes: tuple[int, ...] = ()
    num_blocks: tuple[int, ...] = ()
    block_size: int = 0
    block_bytes: int = 0
    tokens: tuple[int, ...] = ()
    concurrency: tuple[float, ...] = ()
    users: tuple[int, ...] = ()
    longest: tuple[int, ...] = ()
    verdict: Verdict | None = None

    @figure
    def gpu(self) -> str | None:
        """The catalogue's name of the GPU; None: none was given."""
        return None if self.plan.gpu is None else self.plan.gpu.slug

    @property
    def request_bytes(self) -> int:
        """The least that one request of the plan's context keeps, on one rank."""
        return sum(group.request_bytes for group in self.kv_groups)
