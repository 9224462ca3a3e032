"""Speech recognition in windows, as Whisper does it: streams, and bursts of windows.

estimate = estimate_speech(config, streams=32, at_once=8, gpu="l4")
estimate.places[0].terms, estimate.verdict

A stream keeps the cross-attention of its window and its own text. Windows of several streams that
end together are encoded at once; the old caches go when the new ones are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ullage.facts.families.architecture import read_model
from ullage.facts.families.kv_cache import token_bytes
from ullage.facts.families.layers import Attention, Cross, Model
from ullage.ground.errors import SpecError
from ullage.players.eager.term import Interval, Term, exact
from ullage.players.eager.training.architectures.whisper import Whisper
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.workloads.answer import Place, WorkloadEstimate
from ullage.players.eager.workloads.passes import Pass, device_and_machine, make_place, play_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.facts.families.config import Config
    from ullage.facts.gpus.gpu import Entry
    from ullage.players.eager.training.eager.arena import Arena
    from ullage.players.eager.training.eager.tensor import Tensor

WINDOW_S: Final = 30
RATE_HZ: Final = 16_000
_FRAMES_A_POSITION: Final = 2
_FLOAT32: Final = 4


def stream_bytes(model: Model) -> tuple[int, int]:
    """Bytes that a stream keeps in 16 bits: of its window's cross-attention, and of its text.

    Counts: keys and values of every position of the encoder, and of as many tokens as the decoder
    has positions.
    Ignores: beam search, which multiplies the text's by the beams; rounding to blocks.
    Error: none (docs/results/estimates.md).
    Source: Radford et al. 2022, arXiv:2212.04356; transformers' modeling_whisper.py.

    Raises:
        SpecError: the model has no encoder of a fixed length.
    """
    crosses = [layer for layer in model.layers if isinstance(layer, Cross)]
    if not crosses or crosses[0].positions is None or model.context is None:
        raise SpecError(
            f"{model.model_type}: found no encoder of a fixed length, expected a model like Whisper"
        )
    own = [layer for layer in model.layers if isinstance(layer, Attention)]
    return (
        crosses[0].positions * sum(token_bytes(layer) for layer in crosses),
        model.context * sum(token_bytes(layer) for layer in own),
    )


def feature_bytes(config: Config, windows: int) -> int:
    """Spectra of some windows on the GPU, as the feature extractor makes them.

    Counts: windows x bins x frames in 32 bits.
    Ignores: their copy in the model's dtype, which is an input of the encoder's pass.
    Error: none. Source: transformers' feature_extraction_whisper.py.
    """
    frames = _FRAMES_A_POSITION * int(config.number("max_source_positions"))
    return windows * int(config.number("num_mel_bins")) * frames * _FLOAT32


def estimate_speech(
    config: Config, streams: int, at_once: int | None = None, gpu: str | Entry | None = None
) -> WorkloadEstimate:
    """Estimates the memory of streams of speech on a GPU, with transformers in 16 bits.

    Counts: weights, caches of every stream with a whole window and the longest text, and a burst:
    the windows that are encoded at once, with their new caches beside the old ones.
    Ignores: beam search, word timestamps, segments that the allocator keeps.
    Error: docs/results/estimates.md.
    Source: transformers 5.23, models/whisper/modeling_whisper.py, cache_utils.py.

    Args:
        config: of a model like Whisper.
        streams: streams at the same time.
        at_once: windows that one pass encodes; None: those of all streams.
        gpu: of the catalogue; None: an H100's rules, and no verdict.

    Raises:
        SpecError: the model is not of that kind, or a number is not possible.
    """
    burst = streams if at_once is None else at_once
    if not 1 <= burst <= streams:
        raise SpecError(f"speech: found {burst} windows at once, expected from 1 to {streams}")
    model = read_model(config)
    cross, own = stream_bytes(model)
    device, machine = device_and_machine(gpu)
    passed = play_pass(
        machine, lambda arena: Whisper(arena, config, Recipe(length=1)), _encode(burst)
    )
    features = feature_bytes(config, burst)
    terms = [
        exact("weights", passed.weight_bytes, "encoder and decoder"),
        exact("cross-attention", streams * cross, f"the windows of {streams:,} streams"),
        exact("text", streams * own, f"{model.context:,} tokens of each stream"),
        exact("spectra", features, f"{burst:,} windows, 32 bits"),
        _burst_term(config, passed, burst, (cross, own), machine.blas_workspace_bytes),
    ]
    place = make_place(device, machine, passed.weight_rounding_bytes, terms)
    return WorkloadEstimate(
        "speech",
        f"{config.name}: {streams:,} streams, {burst:,} windows at once",
        None if device is None else device.slug,
        (place,),
        _figures(place, streams, cross + own),
        (
            "transformers, 16 bits, greedy search; scaled_dot_product_attention",
            "every stream has a whole window and the longest text",
            "the caches of a window go when those of the next are there",
            "segments that the allocator keeps empty are not counted: it gives them back",
            *(() if device is None else device.assumptions),
        ),
    )


def _encode(windows: int) -> Callable[[Arena, Whisper], Tensor]:
    """The encoder's pass over some windows."""
    from ullage.log.category import Category
    from ullage.players.eager.training.eager.tensor import empty

    def run(arena: Arena, model: Whisper) -> Tensor:
        shape = (windows, model.bins, model.frames)
        return model.encoder(empty(arena, shape, model.dtype, Category.INPUT))

    return run


def _burst_term(
    config: Config, passed: Pass, burst: int, stream: tuple[int, int], blas: int
) -> Term:
    """The most that a burst adds: the encoder's pass, or its output with the new caches."""
    encoded = burst * config.number("max_source_positions") * config.number("d_model") * 2
    caches = burst * sum(stream)
    step = _step_bytes(config, burst, blas)
    likely = max(passed.working.likely, encoded + caches + step.likely)
    high = max(passed.working.high, encoded + caches + step.high)
    low = max(passed.working.low, encoded + step.low) - caches
    what = "the encoder's pass, or its output and the new caches with a step of the decoder"
    return Term(
        "burst", likely, max(low, 0), high, what, "played and counted; low: old caches go first"
    )


def _step_bytes(config: Config, burst: int, blas: int) -> Interval:
    """A decoder's step: cuBLAS's workspace beside logits in 16 bits, or their copy in 32; at most
    with one layer's keys or values, which the cache copies.
    """
    logits = burst * int(config.number("vocab_size")) * 2
    row = burst * int(config.number("max_target_positions")) * int(config.number("d_model")) * 2
    return Interval(0, logits + max(blas, 2 * logits), 3 * logits + blas + 2 * row)


def _figures(place: Place, streams: int, each: int) -> tuple[tuple[str, int, str], ...]:
    audio = WINDOW_S * RATE_HZ * _FLOAT32
    figures = [
        ("a stream keeps", each, "bytes"),
        ("audio of a window, in host memory", audio, "bytes"),
    ]
    if place.capacity_bytes is not None:
        left = place.capacity_bytes - place.high_bytes
        figures.append(
            ("streams that fit with that burst", max(0, streams + left // each), "streams")
        )
    return tuple(figures)
