"""How a model is trained: what `ullage estimate` needs to know besides the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.errors import SpecError
from ullage.estimate.training.layout import ALONE, Layout

__all__ = ["CHECKPOINTING", "PRECISIONS", "Lora", "Recipe"]

# name -> (dtype of the parameters, dtype of autocast or None)
PRECISIONS: Final = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "amp-bf16": ("float32", "bfloat16"),
    "amp-fp16": ("float32", "float16"),
}
CHECKPOINTING: Final = ("none", "full", "selective")


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of peft beside frozen weights.

    Attributes:
        rank: rank of the two small matrices.
        targets: names of the layers that get one, such as "q_proj"; ("all-linear",): all but the
            head.
        is_quantized: the frozen weights of all linear layers but the head are NF4 with double
            quantisation, as in QLoRA (bitsandbytes.nn.Linear4bit).
        dropout: dropout of an adapter's input.
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    is_quantized: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Refuses adapters that are not possible."""
        if self.rank < 1:
            raise SpecError(f"lora rank: found {self.rank}, expected at least 1")
        if not self.targets:
            raise SpecError('lora targets: found none, expected names such as "q_proj"')
        if not 0 <= self.dropout < 1:
            raise SpecError(f"lora dropout: found {self.dropout}, expected from 0 to below 1")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A training loop: forward, loss, backward, optimizer.step(), zero_grad().

    Attributes:
        batch: samples of one forward pass, on one rank.
        length: tokens of a sample; None where the model does not read tokens.
        image: pixels of an image's side; None where the model does not see images.
        precision: one of PRECISIONS.
        optimizer: a name of optimizers.py.
        checkpointing: "none"; "full": each block is recomputed in the backward pass; a number N:
            every Nth block is; "selective": each block is, but the outputs of its matrix products
            and of its attention are kept.
        attention: "sdpa" or "eager".
        accumulation: passes before each step of the optimizer.
        clips_gradients: torch.nn.utils.clip_grad_norm_ comes before each step.
        keeps_gradients: zero_grad(set_to_none=False): gradients stay allocated.
        steps_in_backward: the optimizer steps each parameter as soon as it has its gradient, and
            frees the gradient.
        lora: adapters beside frozen weights; None: all parameters are trained.
        layout: how the job is spread over GPUs.
    """

    batch: int = 1
    length: int | None = None
    image: int | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: str | int = "none"
    attention: str = "sdpa"
    accumulation: int = 1
    clips_gradients: bool = False
    keeps_gradients: bool = False
    steps_in_backward: bool = False
    lora: Lora | None = None
    layout: Layout = ALONE

    def __post_init__(self) -> None:
        """Refuses loops that are not possible."""
        if self.precision not in PRECISIONS:
            raise SpecError(
                f"precision: found {self.precision!r}, expected {', '.join(PRECISIONS)}"
            )
        if self.attention not in ("sdpa", "eager"):
            raise SpecError(f"attention: found {self.attention!r}, expected sdpa or eager")
        for name in ("batch", "length", "image", "accumulation"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name}: found {value}, expected at least 1")
        way = self.checkpointing
        if way not in CHECKPOINTING if isinstance(way, str) else way < 1:
            raise SpecError(
                f"checkpointing: found {way!r}, expected {', '.join(CHECKPOINTING)} or a number "
                f"from 1 on"
            )
        if self.steps_in_backward and (self.accumulation > 1 or self.clips_gradients):
            raise SpecError(
                "steps_in_backward: gradients that are freed at once can be neither accumulated "
                "nor clipped; turn off one of them"
            )

    @property
    def checkpoints_every(self) -> int:
        """N where every Nth block is checkpointed; 0: none is."""
        way = self.checkpointing
        return way if isinstance(way, int) else int(way != "none")
