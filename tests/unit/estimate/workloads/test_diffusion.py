"""Pipelines of diffusers: the peak is the largest stage, not the sum."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.workloads.diffusion import (
    Offload,
    Sampler,
    estimate_diffusion,
    play_stages,
)


def config(name: str) -> Config:
    return find_model(name).config


SD15 = Sampler(config("sd15-unet"), config("sd-vae"), config("clip-vit-l14"))


# docs/results/estimates.md: diffusers' own pipeline on the phantom, in fp16.
def test_each_stage_peaks_where_the_library_does() -> None:
    measured = {
        "text encoder": 2_158_737_920,
        "denoiser": 2_294_665_216,
        "VAE decoder": 2_796_992_000,
    }
    estimate = estimate_diffusion(SD15, "h100-80gb")
    stages = {name.removesuffix(" at its peak"): size for name, size, _ in estimate.figures}
    assert stages == {name: pytest.approx(size, rel=0.015) for name, size in measured.items()}
    terms = [term for term in estimate.places[0].terms if term.name != "context"]
    assert sum(term.bytes for term in terms) == pytest.approx(max(measured.values()), rel=0.002)


def test_offload_by_model_holds_one_stage_and_the_rest_waits_on_the_host() -> None:
    stages = play_stages(SD15, Machine())
    estimate = estimate_diffusion(replace(SD15, offload=Offload.MODEL))
    gpu, host = estimate.places
    assert gpu.bytes < sum(stage.passed.weight_bytes for stage in stages)
    assert host.bytes == sum(stage.passed.weight_bytes for stage in stages)
    largest = max(stage.passed.weight_bytes + stage.passed.working.likely for stage in stages)
    terms = {term.name: term.bytes for term in gpu.terms}
    assert terms["weights"] + terms["pass of the denoiser"] == largest


def test_offloads_are_ordered_and_intervals_hold_their_likely_value() -> None:
    sizes = []
    for offload in Offload:
        (gpu, *_) = estimate_diffusion(replace(SD15, offload=offload)).places
        assert all(term.low_bytes <= term.bytes <= term.high_bytes for term in gpu.terms)
        sizes.append(gpu.bytes)
    assert sizes == sorted(sizes, reverse=True)


def test_guidance_doubles_the_denoisers_batch_alone() -> None:
    plain, guided = (
        {stage.name: stage.passed.working.likely for stage in play_stages(sampler, Machine())}
        for sampler in (replace(SD15, is_guided=False), SD15)
    )
    assert guided["VAE decoder"] == plain["VAE decoder"]
    assert 1.5 < guided["denoiser"] / plain["denoiser"] <= 2.0


def test_tiles_bound_the_decoder() -> None:
    large = replace(SD15, side=1024)
    whole, tiled = (
        play_stages(sampler, Machine())[-1].passed.working.likely
        for sampler in (large, replace(large, is_tiled=True))
    )
    assert whole > 3 * tiled


def test_impossible_pipelines_are_refused() -> None:
    with pytest.raises(SpecError, match="expected UNet2DConditionModel or DiT"):
        Sampler(config("gpt2"), config("sd-vae"))
    with pytest.raises(SpecError, match="expected AutoencoderKL"):
        Sampler(config("sd15-unet"), config("gpt2"))
    with pytest.raises(SpecError, match="multiple of 8 pixels"):
        replace(SD15, side=500)
