"""Which flag or version took the cache's tokens: two starts, compared.

change = compare_starts(before, after)
change.causes[0].tokens, change.causes[0].why

tokens = bytes / bytes of a token. The change of each is taken at the mean of the other, so the
causes add up to the change exactly. The bytes are the share of the device less the parts that the
engine prints; what rounding and unprinted parts leave is a cause of its own, and has no name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from ullage.explain.servers.start import ServerStart
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Mark, figure

NOT_PRINTED: Final = "not printed"
ROUNDING: Final = "rounding of the printed sizes"
_MODEL: Final = ("model", "quantization", "dtype", "tensor_parallel_size", "tp_size",
                 "speculative_config", "enable_lora", "max_loras", "max_lora_rank",
                 "cpu_offload_gb")  # fmt: skip
_STEP: Final = ("max_num_batched_tokens", "max_num_seqs", "chunked_prefill_size")
# The options that move a part; those of a later part may move an earlier one only by name here.
MOVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "share": ("gpu_memory_utilization", "mem_fraction_static"),
    "device": (),
    "weights": _MODEL,
    "activations": (*_STEP, "max_model_len", "enforce_eager", "compilation_config", *_MODEL,
                    "limit_mm_per_prompt", "kv_cache_dtype"),
    "outside PyTorch": ("tensor_parallel_size", "tp_size", "disable_custom_all_reduce",
                        "attention_backend", "enforce_eager", "compilation_config", *_STEP,
                        "quantization", "kv_cache_dtype"),
    "CUDA graphs": ("enforce_eager", "compilation_config", "cudagraph_capture_sizes",
                    "cuda_graph_max_bs", "disable_cuda_graph", *_STEP, "max_running_requests"),
    "states": ("max_num_seqs", "max_running_requests", "mamba_cache_dtype"),
    "bytes of a token": ("kv_cache_dtype", "dtype", "max_model_len", "block_size",
                         "tensor_parallel_size", "tp_size", "model", "enable_prefix_caching",
                         "max_num_batched_tokens", "disable_hybrid_kv_cache_manager"),
    "bytes that were asked for": ("kv_cache_memory_bytes", "kv_cache_memory",
                                  "num_gpu_blocks_override", "max_total_tokens"),
}  # fmt: skip
# These change the bytes of a token whatever the model; others of the list, those of some models.
_TOKEN: Final = frozenset({"kv_cache_dtype", "dtype", "tensor_parallel_size", "tp_size", "model"})
# Parts that differ by less, in the last digit that is printed, are the same.
_SAME_GRAINS: Final = 1.5


@dataclass(frozen=True, slots=True)
class StartCause:
    """A part of the change.

    Attributes:
        part: such as "activations".
        tokens: that it gave, or took (negative).
        bytes: likewise; None of the bytes of a token.
        why: the options that differ and move it, such as "max_num_batched_tokens 2048 -> 16384";
            or what else is known; "": nothing that was printed explains it.
    """

    part: str
    tokens: float
    bytes: int | None
    why: str


@dataclass(frozen=True, slots=True)
class StartChange:
    """The change of the cache between two starts.

    Attributes:
        before, after: the starts.
        causes: those that changed, the largest change of tokens first.
        options: that differ: name, before, after.
    """

    before: ServerStart
    after: ServerStart
    causes: tuple[StartCause, ...]
    options: Annotated[tuple[tuple[str, str, str], ...], Mark.NO_KEY]

    @figure
    def option_rows(self) -> Annotated[Sequence[Mapping[str, str]], As("options")]:
        """The options that differ."""
        return [dict(zip(("name", "before", "after"), row, strict=True)) for row in self.options]

    @figure
    def tokens(self) -> int:
        """The change of the cache's tokens."""
        return (self.after.tokens or 0) - (self.before.tokens or 0)

    @figure
    def named_frac(self) -> float:
        """The share of all changes that an option, the version or the GPU explains; 1 where nothing
        changed. Rounding is no such reason.
        """
        total = sum(abs(cause.tokens) for cause in self.causes)
        explained = sum(
            abs(cause.tokens) for cause in self.causes if cause.why not in ("", ROUNDING)
        )
        return explained / total if total else 1.0


def compare_starts(before: ServerStart, after: ServerStart) -> StartChange:
    """Compares two starts.

    Raises:
        SpecError: one of them does not say how many tokens its cache has, or how many bytes.
    """
    for side, start in (("first", before), ("second", after)):
        if not start.tokens or start.token_bytes is None:
            missing = "tokens" if not start.tokens else "bytes"
            raise SpecError(
                f"the {side} log does not say how many {missing} the cache has; expected lines "
                "such as 'Available KV cache memory' and 'GPU KV cache size': give the whole log"
            )
    options = tuple(_differing(before, after))
    causes = [cause for cause in _causes(before, after, options) if abs(cause.tokens) >= 1]
    causes.sort(key=lambda cause: -abs(cause.tokens))
    return StartChange(before, after, tuple(causes), options)


def _differing(before: ServerStart, after: ServerStart) -> Iterator[tuple[str, str, str]]:
    """The options that differ, and version, model and GPU."""
    sides = [
        {**_plain(start), "version": start.version or "", "model": start.model or ""}
        for start in (before, after)
    ]
    for name in sorted({*sides[0], *sides[1]}):
        values = tuple(side.get(name, "default") for side in sides)
        if values[0] != values[1] and "" not in values:
            yield name, values[0], values[1]


def _plain(start: ServerStart) -> dict[str, str]:
    options = dict(start.options)
    if start.share is not None:
        name = "gpu_memory_utilization" if start.engine == "vllm" else "mem_fraction_static"
        options[name] = f"{start.share:g}"
    if start.max_model_len is not None:
        options["max_model_len"] = str(start.max_model_len)
    return options


def _causes(
    before: ServerStart, after: ServerStart, options: tuple[tuple[str, str, str], ...]
) -> Iterator[StartCause]:
    cost = before.token_bytes or 1.0, after.token_bytes or 1.0
    size = before.cache_bytes or 0, after.cache_bytes or 0
    is_told = any(start.is_told_blocks or start.cached_from_bytes for start in (before, after))
    if is_told and any(start.is_told_blocks for start in (before, after)):
        # The blocks were given: neither bytes nor their parts make the tokens.
        change = (after.tokens or 0) - (before.tokens or 0)
        part = "bytes that were asked for"
        yield StartCause(part, change, None, _why(part, before, after, options))
        return
    per_byte = (1 / cost[0] + 1 / cost[1]) / 2
    moved = {"bytes that were asked for": size[1] - size[0]} if is_told else _moved(before, after)
    moved[NOT_PRINTED] = size[1] - size[0] - sum(moved.values())
    for part, change in moved.items():
        why = _why(part, before, after, options)
        # What the last digits of a dozen printed sizes can add up to, likely.
        rounding = 3 * _SAME_GRAINS * max(before.grain_bytes, after.grain_bytes)
        if part == NOT_PRINTED and abs(change) <= rounding:
            why = ROUNDING
        elif part == NOT_PRINTED:
            why = _by_exclusion(before, after, options, moved)
        yield StartCause(part, change * per_byte, change, why)
    rest = (1 / cost[1] - 1 / cost[0]) * (size[0] + size[1]) / 2
    part = "bytes of a token"
    yield StartCause(part, rest, None, _token_why(before, after, options))


def _moved(before: ServerStart, after: ServerStart) -> dict[str, int]:
    """The bytes that each part gave to the cache; a part that one side lacks is left out."""
    moved: dict[str, int] = {}
    # A log that breaks off says less; the device is then taken to be the other's.
    total = before.total_bytes or after.total_bytes
    total_2 = after.total_bytes or total
    share, share_2 = before.share, after.share
    if total and total_2 and share and share_2:
        moved["share"] = round((share_2 - share) * (total + total_2) / 2)
        moved["device"] = round((total_2 - total) * (share + share_2) / 2)
    for part, name in (
        ("weights", "weights_bytes"), ("activations", "activation_bytes"),
        ("outside PyTorch", "outside_bytes"), ("CUDA graphs", "graph_estimate_bytes"),
        ("states", "state_bytes"),
    ):  # fmt: skip
        # Graphs and states that are not printed: there are none.
        missing = 0 if part in ("CUDA graphs", "states") else None
        was, now = (
            missing if size is None else size
            for size in (getattr(before, name), getattr(after, name))
        )
        if was is not None and now is not None:
            moved[part] = was - now
    return moved


def _by_exclusion(
    before: ServerStart,
    after: ServerStart,
    options: tuple[tuple[str, str, str], ...],
    moved: Mapping[str, int],
) -> str:
    """Options that differ and move parts that one side does not print: what else could it be?"""
    missing = [part for part in ("weights", "activations", "outside PyTorch") if part not in moved]
    texts = dict.fromkeys(filter(None, (_why(part, before, after, options) for part in missing)))
    return f"{', '.join(texts)}; {' and '.join(missing)} are not in both logs" if texts else ""


def _why(
    part: str, before: ServerStart, after: ServerStart, options: tuple[tuple[str, str, str], ...]
) -> str:
    if part == "device":
        return "another GPU, or other memory of it"
    names = MOVERS.get(part, ())
    texts = [f"{name} {was} -> {now}" for name, was, now in options if name in names]
    if not texts and part != NOT_PRINTED and before.version != after.version:
        texts = [
            f"vLLM {before.version} -> {after.version}"
            if before.engine == "vllm"
            else f"version {before.version} -> {after.version}"
        ]
    if not texts and part in ("activations", "outside PyTorch"):
        cold = before.is_compile_cold, after.is_compile_cold
        if None not in cold and cold[0] != cold[1]:
            words = ["compiled anew" if each else "from the compile cache" for each in cold]
            texts = [" -> ".join(words)]
    return ", ".join(texts)


def _token_why(
    before: ServerStart, after: ServerStart, options: tuple[tuple[str, str, str], ...]
) -> str:
    cost = before.token_bytes or 1.0, after.token_bytes or 1.0
    grain = max(before.grain_bytes, after.grain_bytes)
    size = min(before.cache_bytes or 1, after.cache_bytes or 1)
    if abs(cost[1] / cost[0] - 1) <= _SAME_GRAINS * grain / size:
        return ROUNDING
    certain = tuple(option for option in options if option[0] in _TOKEN)
    return _why("bytes of a token", before, after, certain or options)
