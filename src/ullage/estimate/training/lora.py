"""Low-rank adapters beside frozen linear layers, as peft has them; and their frozen weights in NF4.

Source: peft/tuners/lora/layer.py (Linear.forward) and bnb.py (Linear4bit.forward); bitsandbytes'
functional.py (quantize_4bit, dequantize_4bit) and autograd/_functions.py (MatMul4Bit).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Final

from ullage.errors import SpecError
from ullage.estimate.training.architectures.model import Model
from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager.arena import Arena, Storage
from ullage.estimate.training.eager.autograd import Gradients, connect, record
from ullage.estimate.training.eager.dtype import BFLOAT16, FLOAT32
from ullage.estimate.training.eager.module import Embedding, Linear, Module, Stack
from ullage.estimate.training.eager.tensor import Tensor, empty
from ullage.estimate.training.recipe import Lora
from ullage.trace.category import Category

__all__ = ["AdaptedLinear", "QuantizedLinear", "add_adapters"]

ALL_LINEAR: Final = ("all-linear",)
_BLOCK: Final = 64  # elements that share a scale
_OUTER_BLOCK: Final = 256  # scales that share a scale of theirs
_TABLE_BYTES: Final = (64, 1024)  # of the 16 values of NF4, and the 256 of a scale
_SHARED_TABLE_BYTES: Final = 1024  # from which those of scales are copied (name2qmap)


class QuantizedLinear(Module):
    """bitsandbytes.nn.Linear4bit: two weights in a byte, dequantized for each product.

    Ignores: the kernel that multiplies without dequantizing, which a forward pass over few tokens
    may use.
    """

    def __init__(self, arena: Arena, base: Linear) -> None:
        count = base.weight.numel
        scales = ceil(count / _BLOCK)
        packed = arena.take(ceil(count / 2), Category.PARAMETER)
        self.weight = Tensor(base.weight.shape, BFLOAT16, packed)
        self.scales: list[Storage] = [
            arena.take(nbytes, Category.PARAMETER)
            for nbytes in (scales, 4 * ceil(scales / _OUTER_BLOCK), 4, *_TABLE_BYTES)
        ]
        self.bias = base.bias

    def __call__(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = F.to(x, BFLOAT16)
        shape = x.shape
        node = record((x,), lambda gradient, _: self._rule(gradient, shape))
        scales = [self._scales() for _ in range(2)]  # before and after the offset is added
        whole = self.weight.like()
        out = F.multiply(x, (*shape[:-1], whole.shape[0]))
        del scales, whole
        return F.to(connect(out, node), before)

    def _rule(self, gradient: Tensor, shape: Sequence[int]) -> Gradients:
        scales = self._scales()
        whole = self.weight.like()
        del scales
        out = F.multiply(gradient, shape)
        del whole
        return [out]

    def _scales(self) -> Tensor:
        return self.weight.like((ceil(self.weight.numel / _BLOCK),), FLOAT32)


class AdaptedLinear(Module):
    """A frozen layer and its adapter: base(x) + B(A(dropout(x))) * scaling."""

    def __init__(self, arena: Arena, base: Linear | QuantizedLinear, lora: Lora) -> None:
        outputs, inputs = base.weight.shape
        self.base = base
        self.dropout = lora.dropout
        # peft keeps adapters of 16-bit models in float32 (autocast_adapter_dtype).
        self.first = Linear(arena, inputs, lora.rank, FLOAT32)
        self.second = Linear(arena, lora.rank, outputs, FLOAT32)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.base(x)
        before = out.dtype
        if isinstance(self.base, QuantizedLinear):
            return self._beside_quantized(x, out)
        x = F.to(x, FLOAT32)
        out = F.add(out, F.scale(self.second(self.first(F.dropout(x, self.dropout)))))
        return F.to(out, before)

    def _beside_quantized(self, x: Tensor, out: Tensor) -> Tensor:
        """peft copies the quantized layer's output before it adds to it."""
        out = connect(out.like(), record((out,), lambda gradient, _: [gradient]))
        if x.arena.autocast is not None:
            more = F.scale(self.second(self.first(F.dropout(x, self.dropout))))
        else:
            x = F.to(x, FLOAT32)
            more = F.scale(self.second(self.first(F.dropout(x, self.dropout))))
            more = F.to(more, out.dtype)
        return F.add(out, more)


def add_adapters(arena: Arena, model: Model, lora: Lora) -> None:
    """Freezes a model and puts adapters beside the layers that are targets.

    Where linear layers are quantized, all other weights become float32, as
    peft.prepare_model_for_kbit_training does.

    Raises:
        SpecError: no layer has such a name.
    """
    for tensor, _ in model.parameters():
        tensor.needs_grad = False
    names: set[str] = set()
    if arena.checkpoints_every:
        _reach_first_layer(model)
    if lora.is_quantized:
        _quantize(arena, model, {})
    if not _adapt(arena, model, lora, names):
        raise SpecError(
            f"lora targets: found {', '.join(lora.targets)}, and the model's linear layers are "
            f"{', '.join(sorted(names))}"
        )


def _reach_first_layer(model: Model) -> None:
    """peft makes the output of the input embeddings a leaf where layers are checkpointed."""
    for _, child, _ in model.children():
        if isinstance(child, Embedding):
            child.leaves = []
            return


def _places(arena: Arena, module: Module) -> Iterator[tuple[Module, str, Any]]:
    """Each attribute below a module that is a tensor or a linear layer.

    Attributes of a layer that counts several times come within a section that repeats as often.
    """
    for name, value in list(vars(module).items()):
        if isinstance(value, Linear | QuantizedLinear | Tensor):
            yield module, name, value
    for _, child, repeats in list(module.children()):
        if isinstance(module, Stack):
            with arena.section(module.name, "build", repeats):
                yield from _places(arena, child)
        else:
            yield from _places(arena, child)


def _is_head(module: Module) -> bool:
    """Whether it is the model itself, whose own linear layers compute the logits."""
    return isinstance(module, Model)


def _quantize(arena: Arena, model: Model, wide: dict[int, Tensor]) -> None:
    """Quantizes linear layers; wide: the float32 tensor of each weight, so that ties stay."""
    has_table = False
    for module, name, value in _places(arena, model):
        if isinstance(value, Linear) and not _is_head(module):
            quantized_linear = QuantizedLinear(arena, value)
            if not has_table:
                quantized_linear.scales.append(arena.take(_SHARED_TABLE_BYTES, Category.PARAMETER))
                has_table = True
            setattr(module, name, quantized_linear)
    for module, name, value in _places(arena, model):
        is_weight = isinstance(value, Tensor) and value.storage.category is Category.PARAMETER
        if is_weight and not isinstance(module, QuantizedLinear):
            if id(value) not in wide:
                wide[id(value)] = empty(arena, value.shape, FLOAT32, Category.PARAMETER)
            setattr(module, name, wide[id(value)])


def _adapt(arena: Arena, model: Model, lora: Lora, names: set[str]) -> int:
    """Adds the adapters and returns their number; collects the linear layers' names."""
    count = 0
    for module, name, value in _places(arena, model):
        if isinstance(value, Tensor) or isinstance(module, AdaptedLinear):
            continue
        names.add(name)
        if name in lora.targets or (lora.targets == ALL_LINEAR and not _is_head(module)):
            setattr(module, name, AdaptedLinear(arena, value, lora))
            count += 1
    return count
