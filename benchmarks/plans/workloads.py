"""The programs that plans are searched for, the cheapest to run first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Workload:
    """A program, and the GPU that it is for.

    Attributes:
        words: of its command, the script from the root of the repository.
        about: the model and the batch, for people.
        gpu: of the catalogue.
    """

    words: tuple[str, ...]
    about: str
    gpu: str = "h100-80gb"

    @property
    def command(self) -> list[str]:
        """The words with the script where it is."""
        return [str(_ROOT / self.words[0]), *self.words[1:]]


def _text(model: str, batch: int, tokens: int = 1024, gpu: str = "h100-80gb") -> Workload:
    script = "benchmarks/plans/programs/text.py"
    about = f"{batch} texts of {tokens} tokens"
    return Workload((script, model, str(batch), str(tokens)), about, gpu)


def _images(model: str, batch: int) -> Workload:
    script = "benchmarks/plans/programs/images.py"
    return Workload((script, model, str(batch)), f"{batch} images of 224 x 224")


def _latents(model: str, batch: int, side: int) -> Workload:
    script = "benchmarks/plans/programs/diffusion.py"
    return Workload((script, model, str(batch)), f"{batch} latents of {side} x {side}")


WORKLOADS: Mapping[str, Workload] = {
    "gpt2-plain": Workload(("examples/gpt2/train.py", "--batch-size", "8"), "8 texts"),
    "gpt2": _text("gpt2", 8),
    "t5-base": _text("t5-base", 8, 512),
    "mixtral-small": _text("mixtral-small", 8),
    "llama-1b": _text("llama-1b", 4),
    "vit-large": _images("vit_large_patch16_224", 64),
    "dit-xl": _latents("dit-xl", 32, 32),
    "gpt2-medium": _text("gpt2-medium", 8),
    "gpt2-large": _text("gpt2-large", 4),
    "mamba2-130m": _text("mamba2-130m", 4),
    "gpt2-xl": _text("gpt2-xl", 4),
    "llama-8b": _text("llama-8b", 1, 2048, "h200-141gb"),
    "llama-8b-lora": _text("llama-8b-lora", 2, 2048),
    "resnet152": _images("resnet152", 64),
    "sdxl-unet": _latents("sdxl-unet", 2, 128),
}
