"""Diffusion samplers: stages that run one after another, so the peak is the largest, not the sum.

stages = (Stage("text encoder", ...), Stage("transformer", ...), Stage("VAE", ...))
peak_bytes(stages, Offload.MODEL)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil

from ullage.errors import SpecError

__all__ = ["Offload", "Stage", "decoder_bytes", "latent_bytes", "peak_bytes", "peak_stage"]


class Offload(Enum):
    """Where weights wait for their stage."""

    NONE = "all weights stay on the GPU"
    MODEL = "a stage's weights are on the GPU while it runs"
    SEQUENTIAL = "a module's weights are on the GPU while it runs"


@dataclass(frozen=True, slots=True)
class Stage:
    """A network of the pipeline.

    Attributes:
        name: such as "transformer".
        weight_bytes: of all of it.
        largest_module_bytes: of its largest module that holds weights itself.
        activation_bytes: at its peak, for the whole batch; with classifier-free guidance the
            denoiser's batch is twice the images'.
    """

    name: str
    weight_bytes: int
    largest_module_bytes: int
    activation_bytes: int

    def held_bytes(self, offload: Offload) -> int:
        """On the GPU while it runs, the other stages aside."""
        if offload is Offload.SEQUENTIAL:
            return self.largest_module_bytes + self.activation_bytes
        return self.weight_bytes + self.activation_bytes


def peak_stage(stages: Sequence[Stage], offload: Offload) -> Stage:
    """The stage of the peak."""
    if not stages:
        raise SpecError("a sampler has at least one stage; none was given")
    if offload is Offload.NONE:
        return max(stages, key=lambda stage: stage.activation_bytes)
    return max(stages, key=lambda stage: stage.held_bytes(offload))


def peak_bytes(stages: Sequence[Stage], offload: Offload, latents: int = 0) -> int:
    """The most that a sampler holds.

    Counts: NONE: all weights, and the largest stage's activations; MODEL: the largest of
    (weights + activations); SEQUENTIAL: the largest of (module + activations); latents in each.
    Ignores: what the allocator keeps between stages; pinned host copies; prompts' embeddings.
    Error: that of the stages' figures.
    Source: diffusers, pipelines/pipeline_utils.py, enable_model_cpu_offload,
    enable_sequential_cpu_offload.
    """
    peak = peak_stage(stages, offload)
    if offload is Offload.NONE:
        return sum(stage.weight_bytes for stage in stages) + peak.activation_bytes + latents
    return peak.held_bytes(offload) + latents


def latent_bytes(
    height: int, width: int, *, channels: int = 16, factor: int = 8, frames: int = 1,
    batch: int = 1, element: int = 2, copies: int = 3,
) -> int:  # fmt: skip
    """Bytes of latents: (height / factor) x (width / factor) x channels, of each frame.

    Counts: `copies`: the latents, the noise that was predicted, and what the sampler makes of both;
    multistep samplers keep one more for each earlier step.
    Ignores: what a step of the sampler makes and lets go of within itself.
    Error: the sampler's own copies, another latent at most.
    Source: Rombach et al. 2021, arXiv:2112.10752.
    """
    area = ceil(height / factor) * ceil(width / factor)
    return batch * frames * channels * area * element * copies


def decoder_bytes(
    height: int, width: int, *, channels: int = 128, batch: int = 1, element: int = 2,
    tile: int | None = None, live: int = 3,
) -> int:  # fmt: skip
    """Activations of a VAE's decoder at full resolution, where they are largest.

    Counts: `live` maps of `channels` x height x width at once: the input of a residual block, what
    its normalisation or convolution makes, and the shortcut; with tiling, of one tile, and the
    decoded image.
    Ignores: cuDNN's workspace; the attention of the middle block, which is larger only below
    about 64 channels; the last upsampling's doubled input (a quarter of a map).
    Error: `live` is 3 where the framework frees early, 4 where it does not: a third.
    Source: diffusers, models/autoencoders/vae.py (block_out_channels[0] = 128), autoencoder_kl.py
    (tiled_decode).
    """
    image = batch * 3 * height * width * element
    if tile is None:
        return live * batch * channels * height * width * element + image
    if tile < 1:
        raise SpecError(f"tile: found {tile}, expected at least 1 pixel")
    return live * batch * channels * min(tile, height) * min(tile, width) * element + image
