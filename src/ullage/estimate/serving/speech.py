"""Speech recognition: what each stream of audio holds, in windows or without end."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from ullage.errors import SpecError
from ullage.estimate.serving.kv_cache import token_bytes
from ullage.models.layers import Attention, Cross, Model

__all__ = ["Stream", "causal_stream", "engine_charge", "windowed_stream"]

WINDOW_S: Final = 30
RATE_HZ: Final = 16_000
_HOP: Final = 160


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of one stream.

    Attributes:
        cross_bytes: keys and values of the encoded window; made and freed with each window.
        self_bytes: of the decoder's own tokens, at most.
        feature_bytes: the spectrogram and the encoder's output, while a window is encoded.
        audio_bytes: samples that wait for their window, with the overlap.
    """

    cross_bytes: int
    self_bytes: int
    feature_bytes: int
    audio_bytes: int

    @property
    def bytes(self) -> int:
        """All of them, while a window is encoded."""
        return self.cross_bytes + self.self_bytes + self.feature_bytes + self.audio_bytes


def windowed_stream(
    model: Model, kv: str = "bf16", *, bins: int = 80, overlap_s: float = 0.0
) -> Stream:
    """A stream that is transcribed in windows of 30 s, as Whisper is.

    Counts: cross-attention keys and values of 1,500 frames, 448 tokens of the decoder's own, the
    spectrogram (100 frames of `bins` a second, 32 bits) and the encoder's output (16 bits), and
    32-bit samples of a window and its overlap.
    Ignores: the encoder's activations, which one step shares among its streams; beam search, which
    multiplies self_bytes by the beams; prompts of earlier text count as tokens.
    Error: none for the caches. Cross keys and values cannot be shared between requests as a prefix.
    Source: Radford et al. 2022, arXiv:2212.04356; transformers' modeling_whisper.py.

    Raises:
        SpecError: the model has no encoder of a fixed length.
    """
    crosses = [layer for layer in model.layers if isinstance(layer, Cross)]
    if not crosses or crosses[0].positions is None or model.context is None:
        raise SpecError(f"{model.model_type} has no encoder of a fixed length, as Whisper has")
    positions = crosses[0].positions
    own = [layer for layer in model.layers if isinstance(layer, Attention)]
    return Stream(
        positions * sum(token_bytes(layer, kv) for layer in crosses),
        model.context * sum(token_bytes(layer, kv) for layer in own),
        WINDOW_S * RATE_HZ // _HOP * bins * 4 + positions * model.hidden * 2,
        round((WINDOW_S + overlap_s) * RATE_HZ) * 4,
    )


def causal_stream(
    model: Model, window: int, kv: str = "bf16", *, conv_channels: int = 0, conv_steps: int = 0
) -> int:
    """Bytes of a stream without end: attention over the last `window` frames, and convolutions.

    Counts: a ring of keys and values, and the inputs that causal convolutions keep. It does not
    grow: streams that fit = free bytes / this.
    Ignores: audio that waits for a frame (below 1 KiB).
    Error: none for rings that are kept whole; not compared with an engine here.
    Source: Zeghidour et al. 2024, arXiv:2410.00037 (rings); Du et al. 2024, arXiv:2412.10117.
    """
    own = [layer for layer in model.layers if isinstance(layer, Attention)]
    ring = sum(token_bytes(layer, kv) * min(window, layer.window or window) for layer in own)
    return ring + conv_channels * conv_steps * 2


def engine_charge(model: Model, batched: int, block_size: int) -> float:
    """How many times the true need vLLM charges a request for its cross-attention.

    Counts: blocks of the encoder's budget for one step (max_num_batched_tokens), as vLLM does, over
    blocks of the positions that the encoder gives; so it prints too little concurrency.
    Ignores: the decoder's own tokens. The request itself allocates no more than it needs.
    Error: none for the version named.
    Source: vLLM 0.32, v1/kv_cache_interface.py, CrossAttentionSpec.
    """
    positions = next(layer.positions for layer in model.layers if isinstance(layer, Cross))
    if positions is None:
        raise SpecError("the encoder takes inputs of any length; there is no true need to compare")
    return ceil(batched / block_size) / ceil(positions / block_size)
