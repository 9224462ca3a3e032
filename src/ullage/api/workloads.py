"""What is served beside text, from configurations: speech, pictures, indexes of embeddings
(`ullage estimate --speech`, `--diffusion`, `--index`).

    answer = ullage.estimate_speech("whisper-large-v3", 32, at_once=8, gpu="l4")
    answer = ullage.estimate_diffusion("sd15-unet", "vae=sd-vae,text=clip-vit-l14", gpu="rtx-4090")
    answer = ullage.estimate_index("hnsw:vectors=10M,width=768", gpu="l4")
    answer.fits, answer.estimate.places
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ullage.models.config import Config
from ullage.models.find import find_config

if TYPE_CHECKING:
    from ullage.estimate.workloads.answer import WorkloadEstimate

__all__ = ["WorkloadAnswer", "estimate_diffusion", "estimate_index", "estimate_speech"]


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """What a workload needs, from configurations alone.

    Attributes:
        estimate: all that was found.
    """

    estimate: WorkloadEstimate

    @property
    def fits(self) -> bool | None:
        """True: even where all takes the most; False: not even at the least; None: between, or no
        size is known.
        """
        verdict = self.estimate.verdict
        return (
            None if verdict is None else {"fits": True, "may fit": None}.get(verdict.value, False)
        )

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.estimate/1"."""
        from ullage.report.document.workloads import workload_document

        return workload_document(self.estimate)

    def text(self, width: int = 80) -> str:
        """The report, as the terminal shows it."""
        from ullage.report.text.workloads import render_workload

        return render_workload(self.estimate, width)


def estimate_speech(
    model: str | Config, streams: int, *, at_once: int | None = None, gpu: str | None = None
) -> WorkloadAnswer:
    """What streams of speech need with a model like Whisper; no torch.

    Args:
        model: as for `estimate_training`.
        streams: at the same time, each with a window of 30 s and the longest text.
        at_once: windows that are encoded in one pass; None: those of all streams.
        gpu: of the catalogue; None: no verdict.

    Raises:
        SpecError: the model or the GPU is not known, or a number is not possible.
    """
    from ullage.estimate.workloads.speech import estimate_speech as estimate

    return WorkloadAnswer(estimate(_config(model), streams, at_once, gpu))


def estimate_diffusion(
    denoiser: str | Config,
    parts: str,
    *,
    images: int = 1,
    side: int = 512,
    precision: str = "fp16",
    gpu: str | None = None,
) -> WorkloadAnswer:
    """What a pipeline of diffusers needs: the most of its stages; no torch.

    Args:
        denoiser: a UNet or a DiT, found as by `estimate_training`.
        parts: "vae=MODEL", and perhaps "text=MODEL", "offload=model" or "offload=sequential",
            "guidance=off", "tiles=on".
        images: made at once.
        side: pixels of an image's side.
        precision: "fp16", "bf16" or "fp32".
        gpu: of the catalogue; None: no verdict.

    Raises:
        SpecError: a model or the GPU is not known, or a setting is not possible.
    """
    from ullage.estimate.workloads.diffusion import Sampler, parse_offload
    from ullage.estimate.workloads.diffusion import estimate_diffusion as estimate
    from ullage.estimate.workloads.settings import Settings

    settings = Settings.parse("--diffusion", parts)
    vae, text = settings.text("vae", ""), settings.text("text", "")
    offload = parse_offload(settings.text("offload", "none"))
    is_guided, is_tiled = settings.switch("guidance", "on"), settings.switch("tiles", "off")
    settings.check()
    sampler = Sampler(
        _config(denoiser), _config(vae or settings.refuse_missing("vae")),
        _config(text) if text else None, images, side, precision, offload,
        is_guided=is_guided, is_tiled=is_tiled,
    )  # fmt: skip
    return WorkloadAnswer(estimate(sampler, gpu))


def estimate_index(
    index: str, *, model: str | Config | None = None, gpu: str | None = None
) -> WorkloadAnswer:
    """What an index of embeddings needs, shared out over machines and tiers; no torch.

    Args:
        index: such as "ivfpq:vectors=100M,width=768,codes=96,lists=65536,rerank=on,shards=4,
            host=64GiB,nvme=1TiB"; the kinds are flat, hnsw, ivf and ivfpq.
        model: what makes the embeddings, whose width is taken; None: the index says it.
        gpu: of the catalogue: the fastest tier; None: there is none.

    Raises:
        SpecError: a setting, the model or the GPU is not known or not possible.
    """
    from ullage.estimate.workloads.index import estimate_index as estimate
    from ullage.estimate.workloads.index import parse_index
    from ullage.estimate.workloads.passes import context_term, device_and_machine
    from ullage.models.architecture import read_model

    width = None if model is None else read_model(_config(model)).hidden
    device, machine = device_and_machine(gpu)
    found, tiers, shards = parse_index(
        index, width, None if device is None else device.capacity_bytes
    )
    held = None if device is None else context_term(device, machine)
    name = None if device is None else device.name
    return WorkloadAnswer(estimate(found, tiers, shards, gpu=name, held=held))


def _config(model: str | Config) -> Config:
    return model if isinstance(model, Config) else find_config(model).config
