"""Streams of speech: what each keeps, and what a burst adds."""

from __future__ import annotations

import pytest

import ullage
from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.ground.errors import SpecError
from ullage.ground.units import MIB
from ullage.players.eager.workloads.speech import estimate_speech, stream_bytes
from ullage.verbs.capacity.workloads_text import workload_line


# Keys and values of 1,500 frames and of 448 tokens, by hand: 2 x layers x width x 2 bytes each.
@pytest.mark.parametrize(
    ("name", "layers", "width"), [("whisper-large-v3", 32, 1280), ("whisper-tiny", 4, 384)]
)
def test_a_stream_keeps_its_window_and_its_text(name: str, layers: int, width: int) -> None:
    cross, text = stream_bytes(read_model(find_model(name).config))
    assert (cross, text) == (2 * layers * width * 2 * 1500, 2 * layers * width * 2 * 448)


# docs/results/estimates.md: transformers' own on the phantom, torch 2.15.
@pytest.mark.parametrize(
    ("name", "streams", "at_once", "weights", "peak"),
    [("whisper-tiny", 8, 4, 76_503_040, 266_442_752),
     ("whisper-large-v3", 8, 4, 3_087_892_480, 6_971_998_208)],
)  # fmt: skip
def test_the_peak_of_a_burst_is_that_of_the_library(
    name: str, streams: int, at_once: int, weights: int, peak: int
) -> None:
    estimate = estimate_speech(find_model(name).config, streams, at_once, "h100-80gb")
    terms = {term.name: term for term in estimate.places[0].terms}
    context = terms.pop("context")
    assert context.low_bytes < context.bytes < context.high_bytes
    assert terms["weights"].bytes + terms["block rounding"].bytes == weights
    assert sum(term.bytes for term in terms.values()) == pytest.approx(peak, rel=0.02)
    assert sum(term.low_bytes for term in terms.values()) < peak
    assert sum(term.high_bytes for term in terms.values()) > peak


def test_what_fits_with_a_burst_is_the_room_that_it_leaves() -> None:
    config = find_model("whisper-large-v3").config
    estimate = estimate_speech(config, 8, 4, "l4")
    most = estimate.figures[-1][1]
    assert estimate_speech(config, most, 4, "l4").verdict is not None
    place = estimate_speech(config, most, 4, "l4").places[0]
    assert place.capacity_bytes is not None
    # The interval of rounding grows with the streams, by 2 %.
    assert 0.97 * place.capacity_bytes < place.high_bytes < 1.03 * place.capacity_bytes


def test_a_model_without_an_encoder_of_a_fixed_length_is_refused() -> None:
    with pytest.raises(SpecError, match="no encoder of a fixed length"):
        estimate_speech(find_model("llama-3.2-1b").config, 4)
    with pytest.raises(SpecError, match="from 1 to 4"):
        estimate_speech(find_model("whisper-tiny").config, 4, 5)


def test_freeing_the_old_caches_first_takes_less() -> None:
    (place,) = estimate_speech(find_model("whisper-small").config, 8, 8).places
    burst = next(term for term in place.terms if term.name == "burst")
    assert burst.low_bytes < burst.bytes - 8 * 40 * MIB


def test_a_gpu_without_cuda_is_said_to_be_counted_as_if_it_had_it() -> None:
    answers = (
        ullage.capacity("whisper-tiny", users=2, gpu="mi300x"),
        ullage.capacity("sd15-unet", ["sd-vae"], gpu="mi300x"),
        ullage.capacity("flat:vectors=1M,width=768", gpu="mi300x"),
    )
    for answer in answers:
        assert workload_line(answer.estimate).startswith("fits on mi300x, counted as CUDA: ")
        assert any("compared with nothing" in line for line in answer.estimate.assumptions)
