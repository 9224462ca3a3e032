"""What is served beside plain text: speech, pictures, retrieval, adapters, speculation."""

from __future__ import annotations

import pytest

from ullage.errors import SpecError
from ullage.estimate.serving import adapters, diffusion_sampling, retrieval, speech
from ullage.estimate.serving.diffusion_sampling import Offload, Stage
from ullage.estimate.serving.kv_cache import token_bytes
from ullage.estimate.serving.speculation import with_draft, with_layers
from ullage.models.architecture import read_model
from ullage.models.builtin import find_model
from ullage.models.layers import Model
from ullage.units import GIB, MIB


def model(name: str) -> Model:
    return read_model(find_model(name).config)


# Figures of vLLM's users: 80 MiB a slot at rank 16, and so on.
@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [("llama-3.1-8b", 16, 80), ("llama-3.1-8b", 64, 320), ("llama-3.1-70b", 16, 395)],
)
def test_adapter_slots(name: str, rank: int, expected: int) -> None:
    assert adapters.slot_bytes(model(name), rank) == expected * MIB
    assert adapters.slot_bytes(model(name), rank, slots=3) == 3 * expected * MIB


def test_slots_shrink_with_ranks_but_not_in_proportion() -> None:
    one, four = (adapters.slot_bytes(model("llama-3.1-8b"), 16, 1, ranks) for ranks in (1, 4))
    assert one / 4 < four < one


@pytest.mark.parametrize(
    ("name", "cross", "own"),
    [("whisper-large-v3", 234.375, 70), ("whisper-large-v3-turbo", 29.296875, 8.75)],
)
def test_a_window_of_speech(name: str, cross: float, own: float) -> None:
    stream = speech.windowed_stream(model(name))
    assert (stream.cross_bytes / MIB, stream.self_bytes / MIB) == (cross, own)
    assert stream.audio_bytes == 30 * 16_000 * 4
    parts = (stream.cross_bytes, stream.self_bytes, stream.feature_bytes, stream.audio_bytes)
    assert stream.bytes == sum(parts)


def test_the_engine_charges_the_encoders_budget() -> None:
    assert speech.engine_charge(model("whisper-tiny"), 4096, 128) == 32 / 12
    with pytest.raises(SpecError, match="no encoder of a fixed length"):
        speech.windowed_stream(model("llama-3.2-1b"))


def test_an_endless_stream_holds_a_ring() -> None:
    llama = model("llama-3.2-1b")
    each = sum(token_bytes(layer) for layer in llama.layers)
    assert speech.causal_stream(llama, 250) == 250 * each
    assert speech.causal_stream(llama, 250, conv_channels=512, conv_steps=2) == 250 * each + 2048


STAGES = (
    Stage("text encoder", 10 * GIB, GIB, GIB),
    Stage("transformer", 24 * GIB, 2 * GIB, 3 * GIB),
    Stage("VAE", GIB // 4, GIB // 8, 5 * GIB),
)


@pytest.mark.parametrize(
    ("offload", "expected", "stage"),
    [
        (Offload.NONE, 34 * GIB + GIB // 4 + 5 * GIB, "VAE"),
        (Offload.MODEL, 27 * GIB, "transformer"),
        (Offload.SEQUENTIAL, 5 * GIB + GIB // 8, "VAE"),
    ],
)
def test_a_sampler_peaks_in_one_stage(offload: Offload, expected: int, stage: str) -> None:
    assert diffusion_sampling.peak_bytes(STAGES, offload) == expected
    assert diffusion_sampling.peak_stage(STAGES, offload).name == stage
    assert diffusion_sampling.peak_bytes(STAGES, offload, latents=7) == expected + 7


def test_tiling_bounds_the_decoder() -> None:
    whole = diffusion_sampling.decoder_bytes(2048, 2048)
    assert whole == 3 * 128 * 2048 * 2048 * 2 + 3 * 2048 * 2048 * 2
    tiled = diffusion_sampling.decoder_bytes(2048, 2048, tile=512)
    assert tiled == 3 * 128 * 512 * 512 * 2 + 3 * 2048 * 2048 * 2
    assert diffusion_sampling.decoder_bytes(4096, 4096, tile=512) - tiled == 3 * 3 * 2048 * 2048 * 2
    assert diffusion_sampling.latent_bytes(1024, 1024, copies=1) == 16 * 128 * 128 * 2


def test_indexes() -> None:
    assert retrieval.flat_bytes(1_000_000, 768) == 3_072_000_000
    graph = retrieval.hnsw_bytes(1_000_000, 768, links=32)
    assert graph - 3_072_000_000 == pytest.approx(1_000_000 * (256 + 128 / 31 + 16), abs=1)
    codes = retrieval.ivf_pq_bytes(1_000_000, 768, lists=4096, codes=96)
    assert codes == 1_000_000 * (96 + 8) + 4096 * 768 * 4 + 256 * 768 * 4
    with pytest.raises(SpecError, match="does not divide"):
        retrieval.ivf_pq_bytes(10, 768, lists=1, codes=100)


def test_passages_fill_a_context() -> None:
    assert retrieval.passages_that_fit(8192, 512, question=300, answer=700) == 14
    assert retrieval.prompt_tokens(14, 512, 300, 700) <= 8192
    assert retrieval.prompt_tokens(15, 512, 300, 700) > 8192
    assert retrieval.passages_that_fit(100, 512, question=300) == 0


def test_a_draft_has_a_cache_of_its_own() -> None:
    large, small = model("llama-3.1-70b"), model("llama-3.2-1b")
    found = with_draft(large, small, ahead=4)
    assert found.token_bytes == sum(token_bytes(layer) for layer in small.layers)
    assert found.request_bytes == 4 * (found.token_bytes + 327_680)
    assert found.step_bytes == 5 * large.vocab * 4
    assert found.weight_bytes == pytest.approx(2 * small.parameters, rel=1e-3)


def test_refused_tokens_need_states_to_return_to() -> None:
    hybrid = model("qwen3-next-80b-a3b")
    one, four = (with_layers(hybrid, 1, ahead) for ahead in (1, 4))
    assert four.request_bytes == 4 * one.request_bytes
    assert one.request_bytes > 36 * 32 * 128 * 128 * 2  # the states of 36 gated delta nets
    assert one.token_bytes == 2 * 2 * 256 * 2
