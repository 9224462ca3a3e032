"""Why a server did not start, by its own words and figures, and what to change.

find_failure(start, text)       # None: the log shows no failure, or breaks off
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ullage.explain.servers.lines import NUMBER, first, number, size
from ullage.explain.servers.start import Failure, ServerStart
from ullage.ground.units import format_bytes

_GIB: Final = rf"{NUMBER} ?GiB"
# vLLM cuts the cache into whole blocks; a share is written with three digits.
_SHARE_STEP: Final = 0.005
_MOST_SHARE: Final = 0.98


def find_failure(start: ServerStart, text: str) -> Failure | None:
    """The first cause that the log shows."""
    for find in (_busy_device, _no_room, _too_long, _too_long_v0, _sglang_pool, _few_states,
                 _out_of_memory):  # fmt: skip
        failure = find(start, text)
        if failure is not None:
            return failure
    return None if start.is_ready else _breaks_off(start, text)


def _busy_device(start: ServerStart, text: str) -> Failure | None:
    match = first(
        rf"Free memory on device (?:\S+ )?\({NUMBER}/{_GIB}\) on startup\s+is less than desired "
        rf"GPU memory utilization\s+\({NUMBER}, {_GIB}\)", text,
    )  # fmt: skip
    if match is None:
        return None
    free, total = size(match[1]), size(match[2])
    lower = int(free / total * 100) / 100
    return Failure(
        f"{format_bytes(total - free, 2)} of the device's {format_bytes(total, 2)} were in use "
        f"before the start, and gpu_memory_utilization={match[3]} asks for {match[4]} GiB",
        (
            "end the other processes (`ullage watch --once` lists them)",
            f"--gpu-memory-utilization {lower:g}: what is free now",
        ),
    )


def _no_room(start: ServerStart, text: str) -> Failure | None:
    is_negative = start.cache_bytes is not None and start.cache_bytes <= 0
    if "No available memory for the cache blocks" not in text and not is_negative:
        return None
    short = -start.cache_bytes if start.cache_bytes is not None else None
    missing = "" if short is None else f": {format_bytes(short, 2)} are missing"
    return Failure(
        f"nothing is left for the cache{missing}; {_taken(start)}",
        tuple(_room_remedies(start, max(short or 0, 0))),
    )


def _taken(start: ServerStart) -> str:
    parts = [
        f"{name} {format_bytes(value, 2)}"
        for name, value in (
            ("weights", start.weights_bytes), ("activations", start.activation_bytes),
            ("outside PyTorch", start.outside_bytes), ("CUDA graphs", start.graph_estimate_bytes),
        )
        if value
    ]  # fmt: skip
    share = "" if start.asked_bytes is None else f" of {format_bytes(start.asked_bytes, 2)}"
    return f"{', '.join(parts) or 'weights and a step'} take all{share} that the engine may have"


def _room_remedies(start: ServerStart, needed_bytes: int) -> Iterator[str]:
    """The remedies that make room for this many bytes, and the gain of each where it is known."""
    total, share = _least_total(start), start.share
    if total and share and needed_bytes:
        needed = share + needed_bytes / total
        step = (int(needed / _SHARE_STEP) + 1) * _SHARE_STEP
        if step <= _MOST_SHARE:
            yield f"--gpu-memory-utilization {step:g}: {format_bytes(needed_bytes, 2)} more"
    elif share is None:
        yield "a higher --gpu-memory-utilization"
    if start.activation_bytes:
        yield (
            "a lower --max-num-batched-tokens or --max-num-seqs: the activations of a step are "
            f"{format_bytes(start.activation_bytes, 2)}"
        )
    else:
        yield "a lower --max-num-batched-tokens or --max-num-seqs: a smaller step"
    if start.graph_estimate_bytes:
        graphs = format_bytes(start.graph_estimate_bytes, 2)
        yield f"--enforce-eager: {graphs} of CUDA graphs, and slower tokens"
    yield "weights in fewer bits (--quantization fp8), or --tensor-parallel-size 2"


def _least_total(start: ServerStart) -> int:
    """The device's memory, or the least that it can be: what was printed is within its share."""
    if start.total_bytes is not None:
        return start.total_bytes
    if not start.share or start.weights_bytes is None or start.cache_bytes is None:
        return 0
    return round((start.weights_bytes + start.cache_bytes) / start.share)


def _too_long(start: ServerStart, text: str) -> Failure | None:
    match = first(
        rf"max seq len\s+\((\d+)\),\s+\(?{_GIB} KV\s+cache is\s+needed,\s+which is larger than the "
        rf"available KV\s+cache\s+memory\s+\({_GIB}\)", text,
    )  # fmt: skip
    if match is None:
        return None
    needed, there = size(match[2]), size(match[3])
    longest = first(r"estimated\s+maximum\s+model\s+length\s+is\s+(\d+)", text)
    remedies = []
    if longest is not None:
        remedies.append(f"--max-model-len {longest[1]}: the longest that fits, by the engine")
    if needed <= 2 * there:
        remedies.append("--kv-cache-dtype fp8: half of the bytes for a token")
    remedies += _room_remedies(start, needed - there)
    return Failure(
        f"one request of {number(match[1]):,} tokens needs {format_bytes(needed, 2)} of cache, "
        f"and {format_bytes(there, 2)} are left for it",
        tuple(remedies),
    )


def _too_long_v0(start: ServerStart, text: str) -> Failure | None:
    match = first(
        r"max seq len \((\d+)\)\s+is larger than the maximum number of tokens that can be\s+"
        r"stored in KV cache \((\d+)\)", text,
    )  # fmt: skip
    if match is None:
        return None
    length, tokens = number(match[1]), number(match[2])
    remedies = [f"--max-model-len {tokens}: as many tokens as the cache holds"]
    if length <= 2 * tokens:
        remedies.append("--kv-cache-dtype fp8: half of the bytes for a token")
    cost = start.token_bytes
    remedies += _room_remedies(start, 0 if cost is None else round((length - tokens) * cost))
    return Failure(
        f"the cache holds {tokens:,} tokens, and one request may have {length:,}", tuple(remedies)
    )


def _sglang_pool(start: ServerStart, text: str) -> Failure | None:
    if "Not enough memory. Please try to increase --mem-fraction-static" not in text:
        return None
    share = "" if start.share is None else f" of {start.share:g}"
    weights = "" if start.weights_bytes is None else f" {format_bytes(start.weights_bytes, 2)} of"
    return Failure(
        f"nothing is left for the cache: mem_fraction_static{share} holds{weights} weights alone",
        ("a higher --mem-fraction-static", "weights in fewer bits", "--tp-size 2"),
    )


def _few_states(start: ServerStart, text: str) -> Failure | None:
    match = first(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)", text)
    if match is None:
        return None
    asked, blocks = number(match[1]), number(match[2])
    now = "" if start.share is None else f" ({start.share:g} now)"
    return Failure(
        f"each of max_num_seqs={asked:,} requests takes a block of states (Mamba), and the cache "
        f"has {blocks:,}",
        (
            f"--max-num-seqs {blocks}, or lower: a block for each request",
            f"a higher --gpu-memory-utilization{now}: more blocks",
        ),
    )


def _out_of_memory(start: ServerStart, text: str) -> Failure | None:
    match = first(
        r"(?:CUDA|HIP) out of memory(?:\.? Tried to allocate ([\d.]+ \w+))?|"
        r"(?:CUDA|HIP) error: out of memory", text,
    )  # fmt: skip
    if match is None:
        return None
    phase = _phase(start, text)
    option = "--mem-fraction-static" if start.engine == "sglang" else "--gpu-memory-utilization"
    remedies = {
        "loading the weights": ("weights in fewer bits, or more GPUs",),
        "capturing CUDA graphs": (f"a lower {option}", "fewer sizes: a lower --max-num-seqs"),
        "trying a step": ("a lower --max-num-batched-tokens or --max-num-seqs",),
        "serving": (f"a lower {option}", "prompt_logprobs and long prompts take memory beside it"),
    }.get(phase, ("the log from the start on, which says what the server was doing",))
    when = f" while {phase}" if phase else ""
    room = f": no room for {match[1]}" if match[1] else ""
    return Failure(f"out of memory{when}{room}", remedies)


def _phase(start: ServerStart, text: str) -> str:
    if start.is_ready:
        return "serving"
    if start.tokens is not None:
        return "capturing CUDA graphs"
    if start.weights_bytes is not None:
        return "trying a step"
    is_loading = re.search("to load model|Loading model|Load weight begin|LLM engine", text)
    return "loading the weights" if is_loading else ""


def _breaks_off(start: ServerStart, text: str) -> Failure | None:
    """A log without an end: how far it came."""
    if start.tokens is not None and "Traceback" not in text:
        return None
    reached = (
        "after the cache was made" if start.tokens is not None
        else "after the weights were loaded" if start.weights_bytes is not None
        else "before the weights were loaded"
    )  # fmt: skip
    error = first(r"(?m)^.*?\b(\w*(?:Error|Exception): .*)$", text)
    if error is None:
        return Failure(f"the log breaks off {reached}", ("give the log to its end",))
    return Failure(f"the start failed {reached}: {error[1][:200]}", ())
