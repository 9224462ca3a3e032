"""Transcribes streams with transformers' Whisper of random weights, and prints what is allocated.

ullage run --gpu h100-80gb --python VENV/bin/python -- whisper_streams.py CONFIG STREAMS AT_ONCE

Every stream has a window and the most tokens; then AT_ONCE of them get their next window. The old
caches go when the new ones are there.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import DynamicCache, EncoderDecoderCache, WhisperConfig
from transformers import WhisperForConditionalGeneration as Whisper

PROMPT = 4
PIECE = 40
STEPS = 4


def transcribe(model: Whisper, windows: int) -> EncoderDecoderCache:
    """Encodes windows, reads a prompt, and writes tokens up to the longest."""
    config = model.config
    frames = 2 * config.max_source_positions
    features = torch.zeros(windows, config.num_mel_bins, frames, device="cuda")
    encoded = model.get_encoder()(features.to(model.dtype))
    note("encoder")
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    rest = config.max_target_positions - PROMPT - STEPS
    pieces = [PIECE] * (rest // PIECE)
    for tokens in (PROMPT, *pieces, rest % PIECE, *[1] * STEPS):
        ids = torch.zeros(windows, tokens, dtype=torch.long, device="cuda")
        inputs = {"decoder_input_ids": ids, "encoder_outputs": encoded, "past_key_values": cache}
        if not tokens:
            continue
        if tokens > PROMPT:  # one by one in a server; the logits of all at once would be no step's
            model.model(**inputs)
            continue
        out = model(**inputs)
        out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
        del out
    return cache


FIGURES: dict[str, int] = {}


def note(name: str) -> None:
    """The most that has been allocated up to here, once for each name."""
    FIGURES.setdefault(f"{name}_peak", torch.cuda.max_memory_allocated())


@torch.no_grad()
def main() -> None:
    """Prints one line of JSON."""
    streams, at_once = (int(word) for word in sys.argv[2:4])
    fields = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_default_dtype(torch.bfloat16)
    model = Whisper(WhisperConfig(**fields)).to("cuda").eval()
    FIGURES["weights"] = torch.cuda.memory_allocated()
    caches = [transcribe(model, at_once) for _ in range(streams // at_once)]
    torch.cuda.synchronize()
    FIGURES["caches"] = torch.cuda.memory_allocated() - FIGURES["weights"]
    torch.cuda.reset_peak_memory_stats()
    caches[0] = transcribe(model, at_once)
    FIGURES["burst_peak"] = torch.cuda.max_memory_allocated()
    print("figures:", json.dumps(FIGURES), flush=True)


if __name__ == "__main__":
    main()
