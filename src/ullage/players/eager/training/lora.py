"""Low-rank adapters beside frozen linear layers, as in peft and others; and their frozen
weights in NF4.

Source: peft/tuners/lora/layer.py (Linear.forward, ParamWrapper), bnb.py (Linear4bit.forward) and
utils/transformers_weight_conversion.py (_convert_peft_config_moe); bitsandbytes'
functional.py (quantize_4bit, dequantize_4bit) and autograd/_functions.py (MatMul4Bit);
litgpt/lora.py and lightning's plugins/precision/bitsandbytes.py; torchtune/modules/peft/lora.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, Final, TypeAlias

from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.architectures.model import Model
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena, Storage
from ullage.players.eager.training.eager.autograd import Gradients, Product, connect, record
from ullage.players.eager.training.eager.dtype import BFLOAT16, FLOAT32, DType, find_dtype
from ullage.players.eager.training.eager.module import (
    Embedding,
    Linear,
    LMHead,
    Module,
    Stack,
    parameter,
)
from ullage.players.eager.training.eager.shapes import permuted
from ullage.players.eager.training.eager.tensor import Tensor, empty
from ullage.players.eager.training.recipe import PRECISIONS, Lora, Recipe

ALL_LINEAR: Final = ("all-linear",)
_BLOCK: Final = 64  # elements that share a scale
_OUTER_BLOCK: Final = 256  # scales that share a scale of theirs
_TABLE_BYTES: Final = (64, 1024)  # of the 16 values of NF4, and the 256 of a scale
# bitsandbytes of that time had `ctx.tensors = (A, B)`: the input stays as long as the graph's nodes
# do, which the loop's loss holds until there is a new one. Later versions have (None, B).
_KEEPS_INPUT_UNTIL: Final = (2, 6)
_SHARED_TABLE_BYTES: Final = 1024  # from which those of scales are copied (name2qmap)


class QuantizedLinear(Module):
    """bitsandbytes.nn.Linear4bit: two weights in a byte, dequantized for each product.

    Ignores: the kernel that multiplies without dequantizing, which a forward pass over few tokens
    may use.
    """

    def __init__(self, arena: Arena, base: Linear, *, has_double_scales: bool = True) -> None:
        self.has_double_scales = has_double_scales
        count = base.weight.numel
        scales = ceil(count / _BLOCK)
        packed = arena.take(ceil(count / 2), Category.PARAMETER)
        self.weight = Tensor(base.weight.shape, BFLOAT16, packed)
        sizes: tuple[int, ...] = (4 * scales, _TABLE_BYTES[0])
        if has_double_scales:
            sizes = (scales, 4 * ceil(scales / _OUTER_BLOCK), 4, *_TABLE_BYTES)
        self.scales: list[Storage] = [arena.take(nbytes, Category.PARAMETER) for nbytes in sizes]
        self.bias = base.bias

    def __call__(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = F.to(x, BFLOAT16)
        shape = x.shape
        node = record((x,), lambda gradient, _: self._rule(gradient, shape))
        if node is not None and retains_inputs(x.arena):
            x.arena.retain(x.detach())
        times = 2 if self.has_double_scales else 0  # before and after the offset is added
        scales = [self._scales() for _ in range(times)]
        whole = self.weight.like()
        out = F.multiply(x, (*shape[:-1], whole.shape[0]))
        del scales, whole
        return F.to(connect(out, node), before)

    def _rule(self, gradient: Tensor, shape: Sequence[int]) -> Gradients:
        scales = self._scales() if self.has_double_scales else None
        whole = self.weight.like()
        del scales
        out = F.multiply(gradient, shape)
        del whole
        return [out]

    def _scales(self) -> Tensor:
        return self.weight.like((ceil(self.weight.numel / _BLOCK),), FLOAT32)


_Frozen: TypeAlias = Linear | QuantizedLinear


class _WithAdapter(Module):
    """A frozen layer, and the first matrix of its adapter."""

    def __init__(self, arena: Arena, frozen: _Frozen, lora: Lora, first: tuple[int, DType]) -> None:
        rank, dtype = first
        self.base = frozen
        self.dropout = lora.dropout
        self.first = Linear(arena, frozen.weight.shape[1], rank, dtype)

    @property
    def weight(self) -> Tensor:
        """The frozen layer's."""
        return self.base.weight


class AdaptedLinear(_WithAdapter):
    """A frozen layer and its adapter: base(x) + B(A(dropout(x))) * scaling."""

    def __init__(
        self, arena: Arena, base: _Frozen, lora: Lora, dtype: DType, *, is_peft: bool = True
    ) -> None:
        super().__init__(arena, base, lora, (lora.rank, dtype))
        self.is_peft = is_peft
        self.second = Linear(arena, lora.rank, base.weight.shape[0], dtype)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.base(x)
        before = out.dtype
        is_copied = isinstance(self.base, QuantizedLinear) and self.is_peft
        if is_copied:  # before anything is added to it
            out = connect(out.like(), record((out,), lambda gradient, _: [gradient]))
        is_cast = not is_copied or x.arena.autocast is None
        x = F.to(x, self.first.weight.dtype) if is_cast else x
        more = F.scale(self.second(self.first(F.dropout(x, self.dropout))))
        more = F.to(more, before) if is_cast and is_copied else more
        out = F.add(out, more)
        del more
        return F.to(out, before)


class AdaptedStack(Module):
    """ParamWrapper of peft: a frozen tensor, to which its adapter's product is added in each pass;
    torch's register_parametrization makes the sum once more, to check it.
    """

    def __init__(self, arena: Arena, base: Tensor, rank: int, dtype: DType) -> None:
        self.base = base
        self.count = prod(base.shape[:-2])
        outputs, inputs = base.shape[-2:]
        self.first = Linear(arena, inputs, rank * self.count, dtype)
        self.second = Linear(arena, rank * self.count, outputs, dtype)

    def __call__(self) -> Tensor:
        base, first, second = self.base, self.first.weight, self.second.weight
        if len(base.shape) == 2:
            more = F.to(F.scale(F.matmul(second, first)), base.dtype)
            F.add(base, more)
            return F.add(base, more)
        (groups, outputs, inputs), rank = base.shape, first.shape[0] // self.count
        second = permuted(F.view(second, (outputs, rank, groups)), (groups, outputs, rank))
        second = F.to(second, base.dtype)
        first = F.to(F.view(first, (groups, rank, inputs)), base.dtype)
        _fold(base, second, first)
        return _fold(base, second, first)


def _fold(base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """torch.baddbmm: cuBLAS gets a copy of what lies in another order; gradients are scaled."""
    shapes, numel = (left.shape, right.shape), base.numel
    work = 2 * numel * right.shape[-2]

    def multiply(like: Tensor, other: Tensor | None, shape: Sequence[int]) -> Tensor:
        copy = None if other is None or other.is_dense else other.like(other.shape)
        out = F.multiply(like, shape, work=work, product=Product.BADDBMM, batch=base.shape[0])
        del copy
        return out

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        others = (None, saved[0])
        return [
            multiply(gradient, other, shape).like()
            for other, shape in zip(others, shapes, strict=True)
        ]

    node = record((left, right), rule, left, right)
    return connect(multiply(base, left, base.shape), node)


class MergedLinear(_WithAdapter):
    """LoRAQKVLinear of litgpt: one adapter for the parts of a merged matrix that are targets; the
    other parts of its result are zeros.
    """

    def __init__(
        self, arena: Arena, base: _Frozen, lora: Lora, dtype: DType, rows: Sequence[int]
    ) -> None:
        super().__init__(arena, base, lora, (lora.rank * len(rows), dtype))
        self.rows = sum(rows)
        self.second = parameter(arena, self.rows, lora.rank, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.base(x)
        narrow = self.first(F.dropout(x, self.dropout))
        wide = self._convolve(narrow)
        if self.rows < out.shape[-1]:
            wide = self._pad(wide, out.shape)
        return F.add(out, F.scale(wide))

    def _convolve(self, x: Tensor) -> Tensor:
        """F.conv1d over tokens, its channels last again."""
        shapes = x.shape, self.second.shape

        def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
            return [gradient.like(shape) for shape in shapes]

        node = record((x, self.second), rule, x, self.second)
        return connect(x.like((*x.shape[:-1], self.rows)), node)

    def _pad(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """zero_pad: rows are copied into zeros."""
        before = x.shape
        node = record((x,), lambda gradient, _: [gradient.like(before)])
        zeros = x.like(tuple(shape))
        out = x.like(tuple(shape))
        del zeros
        return connect(out, node)


def retains_inputs(arena: Arena) -> bool:
    """True if the graph of a product with NF4 keeps its input until it goes."""
    return arena.machine.torch < _KEEPS_INPUT_UNTIL


def describe_adapters(recipe: Recipe) -> list[str]:
    """Sentences about what is kept in which dtype."""
    lora = recipe.lora
    if lora is None:
        return []
    is_peft = recipe.library == "transformers"
    name = lora.dtype or ("fp32" if is_peft else "the model's dtype")
    name = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(name, name)
    lines = [f"adapters are {'peft 0.21' if is_peft else recipe.library}'s, in {name}"]
    if lora.is_quantized and is_peft:
        lines.append("what is not quantized is float32: prepare_model_for_kbit_training")
    elif lora.is_quantized:
        head = "the head is, too" if recipe.library == "litgpt" else "head and embedding are not"
        lines.append(f"linear layers are quantized, {head}")
    return lines


def add_adapters(arena: Arena, model: Model, recipe: Recipe) -> None:
    """Freezes a model and puts adapters beside the layers that are targets.

    Where linear layers are quantized for peft, all other weights become float32, as
    peft.prepare_model_for_kbit_training does.

    Raises:
        SpecError: no layer has such a name.
    """
    lora = recipe.lora
    if lora is None:
        return
    for tensor, _ in model.parameters():
        tensor.needs_grad = False
    names: set[str] = set()
    if recipe.checkpointing != "none":
        _reach_first_layer(model)
    if lora.is_quantized:
        _quantize(arena, model, recipe)
    if not _adapt(arena, model, recipe, names):
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
    """Each attribute below a module that is a tensor or a linear layer."""
    # Attributes of a layer that counts several times come within a section that repeats as often.
    for name, value in list(vars(module).items()):
        if isinstance(value, Linear | QuantizedLinear | Tensor):
            yield module, name, value
    for _, child, repeats in list(module.children()):
        if isinstance(module, Stack):
            with arena.section(module.name, "build", repeats):
                yield from _places(arena, child)
        else:
            yield from _places(arena, child)


def _quantize(arena: Arena, model: Model, recipe: Recipe) -> None:
    has_table = False
    has_double_scales = recipe.lora is not None and recipe.lora.has_double_scales
    for module, name, value in _places(arena, model):
        is_wanted = not isinstance(value, LMHead) or recipe.library == "litgpt"
        if isinstance(value, Linear) and is_wanted:
            quantized_linear = QuantizedLinear(arena, value, has_double_scales=has_double_scales)
            if not has_table and has_double_scales:
                quantized_linear.scales.append(arena.take(_SHARED_TABLE_BYTES, Category.PARAMETER))
                has_table = True
            setattr(module, name, quantized_linear)
    if recipe.library == "transformers":
        _widen(arena, model)


def _widen(arena: Arena, model: Model) -> None:
    """Makes float32 of what is not quantized; ties stay."""
    wide: dict[int, Tensor] = {}
    for module, name, value in _places(arena, model):
        is_weight = isinstance(value, Tensor) and value.storage.category is Category.PARAMETER
        if is_weight and not isinstance(module, QuantizedLinear):
            if id(value) not in wide:
                wide[id(value)] = empty(arena, value.shape, FLOAT32, Category.PARAMETER)
            setattr(module, name, wide[id(value)])


def _adapt(arena: Arena, model: Model, recipe: Recipe, names: set[str]) -> int:
    """Adds the adapters and returns their number; collects the linear layers' names."""
    count = 0
    lora = recipe.lora or Lora()
    is_peft = recipe.library == "transformers"
    stacked = {
        part
        for module, name, value in _places(arena, model)
        for part in module.adapted.get(name, ())
        if isinstance(value, Tensor) and is_peft
    }
    for module, name, value in _places(arena, model):
        is_stack = isinstance(value, Tensor)
        parts = module.adapted.get(name, () if is_stack else (name,))
        # Of a model with stacked experts, peft takes the names of linear layers for theirs alone.
        is_other = is_stack != (not stacked.isdisjoint(parts))
        if is_other or isinstance(module, AdaptedLinear | MergedLinear | AdaptedStack):
            continue
        names.update(parts)
        is_all = lora.targets == ALL_LINEAR and not isinstance(value, LMHead)
        adapted = [part for part in parts if part in lora.targets or is_all]
        if not adapted:
            continue
        dtype = _adapter_dtype(recipe)
        if is_stack:
            _check_stack(lora, parts, adapted)
            setattr(module, name, AdaptedStack(arena, value, lora.rank * len(parts), dtype))
        elif len(parts) > 1:
            rows = [module.adapted_rows(part) for part in adapted]  # type: ignore[attr-defined]
            setattr(module, name, MergedLinear(arena, value, lora, dtype, rows))
        else:
            setattr(module, name, AdaptedLinear(arena, value, lora, dtype, is_peft=is_peft))
        count += 1
    return count


def _check_stack(lora: Lora, parts: Sequence[str], adapted: Sequence[str]) -> None:
    """Raises what peft refuses of stacked experts."""
    if len(adapted) < len(parts):
        raise SpecError(
            f"lora targets: found {', '.join(adapted)}, expected {' and '.join(parts)}, which "
            f"transformers 5 keeps in one tensor"
        )
    if lora.dropout:
        raise SpecError(
            f"lora dropout: found {lora.dropout}, expected 0: peft has none for adapters of stacked"
            f" experts; leave it out, or take targets without experts, such as q_proj,v_proj"
        )


def _adapter_dtype(recipe: Recipe) -> DType:
    """peft keeps adapters of 16-bit models in float32 (autocast_adapter_dtype)."""
    name = None if recipe.lora is None else recipe.lora.dtype
    if name is None and recipe.library == "transformers":
        return FLOAT32
    return find_dtype(PRECISIONS[name or recipe.precision][0])
