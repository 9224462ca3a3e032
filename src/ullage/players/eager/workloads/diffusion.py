"""Images by diffusion: stages that run one after another, so the peak is the largest, not the sum.

sampler = Sampler(denoiser, vae, text, images=4, side=1024, offload=Offload.MODEL)
estimate = estimate_diffusion(sampler, gpu="rtx-4090")

Each stage is a forward pass that is played on tensors without values (passes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ullage.facts.families.defaults import clip_part
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.term import Interval, Term, exact
from ullage.players.eager.training.architectures import build_model
from ullage.players.eager.training.architectures.images.clip import Text
from ullage.players.eager.training.architectures.images.diffusion import FACTOR
from ullage.players.eager.training.eager.tensor import INT64, empty
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.workloads.answer import Place, WorkloadEstimate
from ullage.players.eager.workloads.passes import Pass, device_and_machine, make_place, play_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.facts.families.config import Config
    from ullage.facts.gpus.gpu import Entry
    from ullage.players.eager.training.eager.arena import Arena
    from ullage.players.eager.training.eager.machine import Machine

DENOISERS: Final = ("UNet2DConditionModel", "DiTTransformer2DModel")
_TILED: Final = 512  # pixels of AutoencoderKL's tile, unless its own sample_size says otherwise
_PRECISIONS: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


class Offload(Enum):
    """The place where weights wait for their stage."""

    NONE = "none"
    MODEL = "model"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Sampler:
    """A pipeline of diffusers.

    Attributes:
        denoiser: the configuration of a UNet2DConditionModel or a DiTTransformer2DModel.
        vae: of an AutoencoderKL.
        text: of a CLIP model or its text half; None: the denoiser reads no text.
        images: images that are made at once.
        side: pixels of an image's side.
        precision: "fp16", "bf16" or "fp32" of all weights.
        offload: enable_model_cpu_offload(), enable_sequential_cpu_offload(), or neither.
        is_guided: classifier-free guidance: the denoiser's batch is twice the images.
        is_tiled: enable_tiling(): the VAE decodes tiles.
    """

    denoiser: Config
    vae: Config
    text: Config | None = None
    images: int = 1
    side: int = 512
    precision: str = "fp16"
    offload: Offload = Offload.NONE
    is_guided: bool = True
    is_tiled: bool = False

    def __post_init__(self) -> None:
        """Refuses pipelines that are not possible."""
        if self.denoiser.model_type not in DENOISERS:
            raise SpecError(
                f"{self.denoiser.name}: found {self.denoiser.model_type!r}, expected "
                f"{' or '.join(DENOISERS)}"
            )
        if self.vae.model_type != "AutoencoderKL":
            raise SpecError(f"vae: found {self.vae.model_type!r}, expected AutoencoderKL")
        if self.precision not in _PRECISIONS:
            raise SpecError(
                f"precision: found {self.precision!r}, expected {', '.join(_PRECISIONS)}"
            )
        if self.images < 1 or self.side < FACTOR or self.side % FACTOR:
            raise SpecError(
                f"images={self.images}, side={self.side}: expected at least 1, and a multiple of "
                f"{FACTOR} pixels"
            )

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return _PRECISIONS[self.precision]

    def recipe(self, batch: int, side: int | None = None) -> Recipe:
        """The recipe that the models are built and run with."""
        return Recipe(batch=batch, image=side or self.side, length=1, precision=self.precision)


@dataclass(frozen=True, slots=True)
class Stage:
    """A network of the pipeline, played.

    Attributes:
        name: "text encoder", "denoiser" or "VAE decoder".
        passed: its pass.
    """

    name: str
    passed: Pass

    def on_gpu(self, offload: Offload) -> Interval:
        """Bytes on the GPU while it runs, the other stages' weights aside."""
        working, weights = self.passed.working, self.passed.weight_bytes
        if offload is Offload.SEQUENTIAL:
            # A module's weights are there while it runs; the peak need not be the largest one's.
            most = self.passed.module_bytes
            return Interval(working.low, working.likely + most // 2, working.high + most)
        return Interval(*(weights + size for size in working))


def play_stages(sampler: Sampler, machine: Machine) -> tuple[Stage, ...]:
    """The stages in the order in which they run.

    Counts: each as a forward pass: the text of one prompt, the denoiser for all images (twice with
    guidance), the decoder for all images, or for one tile.
    Ignores: the safety checker; what the sampler makes between two passes, beside the latents.
    Error: docs/results/estimates.md.
    Source: diffusers 0.42, pipelines/stable_diffusion, pipelines/dit, autoencoder_kl.py.
    """
    stages = []
    if sampler.text is not None:
        stages.append(Stage("text encoder", _play_text(sampler, sampler.text, machine)))
    batch = sampler.images * (2 if sampler.is_guided else 1)
    recipe = sampler.recipe(batch)
    stages.append(
        Stage(
            "denoiser",
            play_pass(machine, lambda arena: build_model(arena, sampler.denoiser, recipe),
                      _denoise(recipe)),
        )
    )  # fmt: skip
    stages.append(Stage("VAE decoder", _play_decoder(sampler, machine)))
    return tuple(stages)


def _play_text(sampler: Sampler, config: Config, machine: Machine) -> Pass:
    from ullage.players.eager.training.architectures.model import parameter_dtype

    dtype = parameter_dtype(sampler.recipe(1))

    def run(arena: Arena, model: Text) -> object:
        return model(empty(arena, (1, model.longest), INT64, Category.INPUT))

    return play_pass(machine, lambda arena: Text(arena, clip_part(config, "text"), dtype), run)


def _denoise(recipe: Recipe) -> Callable[[Arena, Any], object]:
    def run(arena: Arena, model: Any) -> object:  # noqa: ANN401 - a UNet or a DiT
        noisy, noise, *others = model.inputs(arena, recipe)
        del noise  # of the loss in training
        return model.denoise(noisy, *others)

    return run


def _play_decoder(sampler: Sampler, machine: Machine) -> Pass:
    tile = sampler.vae.number("sample_size", default=_TILED)
    side = min(sampler.side, tile) if sampler.is_tiled else sampler.side
    recipe = sampler.recipe(sampler.images, side)

    def run(arena: Arena, model: Any) -> object:  # noqa: ANN401 - the VAE
        width = side // FACTOR
        shape = (sampler.images, model.latent, width, width)
        return model.decode(empty(arena, shape, noise_dtype, Category.INPUT))

    from ullage.players.eager.training.architectures.model import parameter_dtype

    noise_dtype = parameter_dtype(recipe)
    return play_pass(machine, lambda arena: build_model(arena, sampler.vae, recipe), run)


def _outputs(sampler: Sampler) -> int:
    """Bytes that stay between the passes: latents with what is computed of them, and prompts."""
    channels = int(sampler.vae.number("latent_channels", default=4))
    area = (sampler.side // FACTOR) ** 2
    latents = 4 * sampler.images * channels * area * sampler.element
    tiles = 3 * sampler.images * sampler.side**2 * sampler.element if sampler.is_tiled else 0
    return latents + 2 * tiles


def estimate_diffusion(sampler: Sampler, gpu: str | Entry | None = None) -> WorkloadEstimate:
    """Estimates the memory of a pipeline of diffusers on a GPU, the most of its stages.

    Counts: with no offload all weights, and the largest pass; with offload by model the largest
    (weights + pass); sequentially the largest (module + pass).
    Ignores: segments that the allocator keeps between stages, and pinned copies on the host.
    Error: docs/results/estimates.md.
    Source: diffusers 0.42, pipelines/pipeline_utils.py (enable_model_cpu_offload,
    enable_sequential_cpu_offload).

    Raises:
        SpecError: a configuration or a number is not possible.
    """
    device, machine = device_and_machine(gpu)
    stages = play_stages(sampler, machine)
    peak = max(stages, key=lambda stage: _peak(stages, stage, sampler.offload).likely)
    terms = _terms(sampler, stages, peak)
    places = [make_place(device, machine, _rounding(stages, peak, sampler.offload), terms)]
    if sampler.offload is not Offload.NONE:
        size = sum(stage.passed.weight_bytes for stage in stages)
        waiting = exact("weights", size, "where they wait for their stage")
        places.append(Place("host", None, (waiting,)))
    noun = "image" if sampler.images == 1 else "images"
    return WorkloadEstimate(
        "diffusion",
        f"{sampler.denoiser.name}: {sampler.images:,} {noun} of {sampler.side:,} pixels a side",
        None if device is None else device.slug,
        tuple(places),
        tuple(
            (f"{stage.name} at its peak", _peak(stages, stage, sampler.offload).likely, "bytes")
            for stage in stages
        ),
        (*_assumptions(sampler, peak), *(() if device is None else device.assumptions)),
    )


def _peak(stages: Sequence[Stage], stage: Stage, offload: Offload) -> Interval:
    """Bytes of weights and tensors while a stage runs."""
    size = stage.on_gpu(offload)
    if offload is not Offload.NONE:
        return size
    rest = sum(other.passed.weight_bytes for other in stages if other is not stage)
    return Interval(*(end + rest for end in size))


def _rounding(stages: Sequence[Stage], peak: Stage, offload: Offload) -> int:
    passed = peak.passed
    if offload is Offload.SEQUENTIAL:
        return passed.rounding_bytes - passed.weight_rounding_bytes
    others = [stage for stage in stages if stage is not peak and offload is Offload.NONE]
    return passed.rounding_bytes + sum(stage.passed.weight_rounding_bytes for stage in others)


def _terms(sampler: Sampler, stages: Sequence[Stage], peak: Stage) -> list[Term]:
    offload, passed = sampler.offload, peak.passed
    weights = Interval(*[passed.weight_bytes] * 3)
    what = f"of the {peak.name}"
    if offload is Offload.NONE:
        weights = Interval(*[sum(stage.passed.weight_bytes for stage in stages)] * 3)
        what = "of all stages"
    elif offload is Offload.SEQUENTIAL:
        weights = Interval(0, passed.module_bytes // 2, passed.module_bytes)
        what = f"of one module of the {peak.name}"
    outputs = _outputs(sampler)
    ends = [_peak(stages, stage, offload) for stage in stages]
    # Another stage may be the largest at one of the ends.
    low = min(max(size.low for size in ends) - weights.low, passed.working.likely)
    high = max(size.high for size in ends) - weights.high
    return [
        Term("weights", weights.likely, weights.low, weights.high, what, "counted"),
        Term(f"pass of the {peak.name}", passed.working.likely, low, high,
             "the most that its tensors take", "played"),
        Term("latents and images", outputs, 0, outputs, "between the passes", "counted"),
    ]  # fmt: skip


def _assumptions(sampler: Sampler, peak: Stage) -> tuple[str, ...]:
    modes = {
        Offload.NONE: "all weights stay on the GPU",
        Offload.MODEL: "a stage's weights are on the GPU while it runs (model offload)",
        Offload.SEQUENTIAL: "a module's weights are on the GPU while it runs (sequential offload)",
    }
    guided = "the denoiser's batch is twice the images (guidance)"
    lines = [
        f"diffusers, {sampler.precision}, sdpa; the {peak.name} is the peak",
        modes[sampler.offload],
        guided if sampler.is_guided else "no guidance",
        "the workspaces of cuDNN's convolutions follow a model, with a lower and an upper bound",
        "segments that the allocator keeps between stages are not counted: it gives them back",
    ]
    if sampler.is_tiled:
        lines.append("the VAE decodes one tile at a time")
    return tuple(lines)
