"""How a model is trained: what `ullage estimate` needs to know besides the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from ullage.ground.errors import SpecError
from ullage.players.eager.training.layout import ALONE, Layout
from ullage.players.eager.training.torch_version import parse_torch
from ullage.verbs.estimate.options import Gradients, Loss

# name -> (dtype of the parameters that the model computes with, dtype of autocast or None)
PRECISIONS: Final = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "amp-bf16": ("float32", "bfloat16"),
    "amp-fp16": ("float32", "float16"),
    "mixed-bf16": ("bfloat16", None),
    "mixed-fp16": ("float16", None),
}
MASTERS: Final = ("mixed-bf16", "mixed-fp16")  # the optimizer steps a copy in float32
GRADIENTS: Final = get_args(Gradients)
CHECKPOINTING: Final = ("none", "full", "selective", "alternate")
LOSSES: Final = get_args(Loss)
# Whose code the model, its adapters and its loss are written in.
LIBRARIES: Final = (
    "transformers",
    "litgpt",
    "torchtitan",
    "torchtune",
    "megatron",
    "torchvision",
    "plain",
)


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters beside frozen weights.

    Attributes:
        rank: rank of the two small matrices.
        targets: names of the layers that get one, such as "q_proj"; ("all-linear",): all but the
            head.
        is_quantized: the frozen weights of all linear layers but the head are NF4, as in QLoRA
            (bitsandbytes.nn.Linear4bit); litgpt's are the head's, too.
        has_double_scales: the scales of NF4 are quantised as well.
        dropout: dropout of an adapter's input.
        dtype: "fp32", "bf16" or "fp16" of the adapters; None: as in the library, which is fp32
            of peft and the model's own of the others.
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    is_quantized: bool = False
    dropout: float = 0.0
    has_double_scales: bool = True
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuses adapters that are not possible."""
        if self.rank < 1:
            raise SpecError(f"lora rank: found {self.rank}, expected at least 1")
        if not self.targets:
            raise SpecError('lora targets: found none, expected names such as "q_proj"')
        if self.dtype not in (None, "fp32", "bf16", "fp16"):
            raise SpecError(f"lora dtype: found {self.dtype!r}, expected fp32, bf16 or fp16")
        if not 0 <= self.dropout < 1:
            raise SpecError(f"lora dropout: found {self.dropout}, expected from 0 to below 1")


_CHOICES: Final = {
    "precision": tuple(PRECISIONS),
    "attention": ("sdpa", "eager"),
    "library": LIBRARIES,
    "loss": LOSSES,
    "gradients": GRADIENTS,
}


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
            and of its attention are kept; "alternate": of the products every second one's is, as in
            torchtitan's selective checkpointing by operator.
        attention: "sdpa" or "eager".
        accumulation: passes before each step of the optimizer.
        clips_gradients: torch.nn.utils.clip_grad_norm_ comes before each step.
        keeps_gradients: zero_grad(set_to_none=False): gradients stay allocated.
        zeroes_late: zero_grad() comes between forward and backward, so that the last step's
            gradients are there during the forward pass.
        steps_in_backward: the optimizer steps each parameter as soon as it has its gradient, and
            frees the gradient.
        lora: adapters beside frozen weights; None: all parameters are trained.
        layout: how the job is spread over GPUs.
        library: one of LIBRARIES.
        loss: "full": the logits of all tokens at once; "chunked": of an eighth of the tokens after
            the other, whose probabilities are kept; "fused": the loss and its gradients are
            computed with the head, chunk by chunk, and no logits are kept (Liger Kernel); None: as
            in the library.
        packed: a sample holds several texts, so that attention gets a mask for each sample.
        gradients: with "mixed" precision: "same" dtype as the parameters; "fp32": they are summed
            in float32, and those of the parameters freed at once; "both": both are there when the
            optimizer steps.
        compiled: torch.compile, with its default partitioner.
        torch: version of PyTorch, such as "2.4"; None: the newest that has code for the GPU.
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
    zeroes_late: bool = False
    steps_in_backward: bool = False
    lora: Lora | None = None
    layout: Layout = ALONE
    library: str = "transformers"
    loss: str | None = None
    gradients: str = "same"
    packed: bool = False
    compiled: bool = False
    torch: str | None = None

    def __post_init__(self) -> None:
        """Refuses loops that are not possible."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in (None, *choices):
                expected = ", ".join(choices)
                raise SpecError(f"{name}: found {getattr(self, name)!r}, expected {expected}")
        if self.gradients != "same" and not self.has_masters:
            raise SpecError(
                f"gradients: found {self.gradients} with precision {self.precision}, expected one "
                f"of {', '.join(MASTERS)}, whose optimizer has parameters of its own"
            )
        if self.torch is not None:
            parse_torch(self.torch)
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
    def loss_kind(self) -> str:
        """One of LOSSES."""
        return self.loss or ("chunked" if self.library == "torchtune" else "full")

    @property
    def has_masters(self) -> bool:
        """The optimizer steps a copy of the parameters in float32."""
        return self.precision in MASTERS

    @property
    def checkpoints_every(self) -> int:
        """N where every Nth block is checkpointed; 0: none is."""
        way = self.checkpointing
        return way if isinstance(way, int) else int(way != "none")
