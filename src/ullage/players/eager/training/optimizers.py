"""The optimizers, and what their step() holds while it runs; optimizer_states.py has their states.

Each has the form of its library: the same tensors in the same order, freed when Python frees
them. A variable that a loop has set still holds its tensor in the next iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena, Storage
from ullage.players.eager.training.eager.dtype import BFLOAT16, FLOAT32, INT64, UINT8, DType
from ullage.players.eager.training.eager.reductions import scratch_of_columns
from ullage.players.eager.training.eager.tensor import Tensor, empty

# The tensors that optimizers keep for each parameter: their states on the device.


def _state(
    parameter: Tensor, shape: Sequence[int] | None = None, dtype: DType | None = None
) -> Tensor:
    return empty(
        parameter.arena,
        parameter.shape if shape is None else shape,
        dtype or parameter.dtype,
        Category.OPTIMIZER_STATE,
    )


def states_like(count: int) -> Callable[[Tensor], list[Tensor]]:
    """`count` states like the parameter; the number of steps is on the CPU and takes nothing."""
    return lambda parameter: [_state(parameter) for _ in range(count)]


def fused_states(parameter: Tensor) -> list[Tensor]:
    """Two moments, and the number of steps on the device."""
    return [_state(parameter, (), FLOAT32), _state(parameter), _state(parameter)]


def factored_states(parameter: Tensor) -> list[Tensor]:
    """torch.optim.Adafactor: a row and a column, in the gradient's dtype; vectors in full."""
    shape = parameter.shape
    if len(shape) < 2:
        return [_state(parameter)]
    return [_state(parameter, (*shape[:-1], 1)), _state(parameter, (*shape[:-2], 1, shape[-1]))]


def factored_float32_states(parameter: Tensor) -> list[Tensor]:
    """transformers.Adafactor: the same in float32, and the parameter's RMS on the device."""
    shape, dtype = parameter.shape, FLOAT32
    rms = _state(parameter, (), dtype)
    if len(shape) < 2:
        return [_state(parameter, shape, dtype), rms]
    row, column = shape[:-1], (*shape[:-2], shape[-1])
    return [_state(parameter, row, dtype), _state(parameter, column, dtype), rms]


_SMALLEST_8BIT: Final = 4096
_BLOCK_8BIT: Final = 256
_SMALLEST_PAGED: Final = 100_000
TABLE_BYTES: Final = 1024  # 256 values in float32


def bytewise_states(parameter: Tensor) -> list[Tensor]:
    """bitsandbytes: a byte each and a float32 for each block; small ones in float32."""
    if parameter.numel < _SMALLEST_8BIT:
        return wide_states(parameter)
    blocks = (ceil(parameter.numel / _BLOCK_8BIT),)
    states = [_state(parameter, dtype=UINT8) for _ in range(2)]
    return states + [_state(parameter, blocks, FLOAT32) for _ in range(2)]


def paged_states(parameter: Tensor) -> list[Tensor]:
    """The same; large ones lie in managed memory, which the driver pages in and out."""
    states = bytewise_states(parameter)
    return states[2:] if parameter.numel >= _SMALLEST_PAGED else states


def wide_states(parameter: Tensor) -> list[Tensor]:
    """bitsandbytes in 32 bits: two in float32."""
    return [_state(parameter, dtype=FLOAT32) for _ in range(2)]


def paged_wide_states(parameter: Tensor) -> list[Tensor]:
    """The same; large ones lie in managed memory."""
    return [] if parameter.numel >= _SMALLEST_PAGED else wide_states(parameter)


def torchao_states(parameter: Tensor) -> list[Tensor]:
    """torchao: a byte each, a float32 for each block, a table; others like the parameter."""
    count = parameter.numel
    if count < _SMALLEST_8BIT or count % _BLOCK_8BIT:
        return [_state(parameter) for _ in range(2)]
    states = []
    for _ in range(2):
        states.append(_state(parameter, dtype=UINT8))
        states.append(_state(parameter, (count // _BLOCK_8BIT,), FLOAT32))
        states.append(_state(parameter, (TABLE_BYTES,), UINT8))
    return states


class Run(NamedTuple):
    """Parameters that follow each other, and how often the group of them stands in the model."""

    repeats: int
    parameters: Sequence[Tensor]


Runs: TypeAlias = Sequence[Run]
Lists: TypeAlias = list[list[Tensor]]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer.

    Attributes:
        prepare: a parameter's states on the device.
        step: step(), once it has its states.
        what: the optimizer's class, and its variant.
        source: where it is written.
        shared_bytes: states that all parameters share, a tensor each.
        is_prepared_at_once: states are there from the start, not from the first step on.
        part: what the optimizer steps; "": all.
        rest: what steps the rest; None: there is none.
    """

    prepare: Callable[[Tensor], list[Tensor]]
    step: Callable[[Arena, Runs], None]
    what: str
    source: str
    shared_bytes: tuple[int, ...] = ()
    is_prepared_at_once: bool = False
    part: str = ""
    rest: Optimizer | None = None


def find_optimizer(name: str) -> Optimizer:
    """The optimizer of a name.

    Raises:
        SpecError: there is none of that name.
    """
    if name not in OPTIMIZERS:
        raise SpecError(f"optimizer: found {name!r}, expected {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def _by_dtype(runs: Runs) -> Iterator[Runs]:
    """Optimizer._group_tensors_by_device_and_dtype."""
    for dtype in dict.fromkeys(parameter.dtype for run in runs for parameter in run.parameters):
        yield [
            Run(
                run.repeats, [parameter for parameter in run.parameters if parameter.dtype is dtype]
            )
            for run in runs
        ]


def _as_often(arena: Arena, repeats: int) -> AbstractContextManager[None]:
    """A section that is repeated; of what comes once, the section that is open stays so."""
    return nullcontext() if repeats == 1 else arena.section("parameters", "optimizer", repeats)


def _each(arena: Arena, runs: Runs) -> Lists:
    """The result of a torch._foreach function: a new tensor for each parameter."""
    lists = []
    for repeats, parameters in runs:
        with _as_often(arena, repeats):
            lists.append([parameter.like() for parameter in parameters])
    return lists


def _drop(arena: Arena, runs: Runs, lists: Lists) -> None:
    """Frees such lists: each tensor as often as there is one."""
    for (repeats, _), tensors in zip(runs, lists, strict=True):
        with _as_often(arena, repeats):
            tensors.clear()


def _foreach(count: int) -> Callable[[Arena, Runs], None]:
    """step() with `count` lists of temporaries; those of a dtype live until the next dtype's."""

    def step(arena: Arena, runs: Runs) -> None:
        previous: list[tuple[Runs, Lists]] = []
        for group in _by_dtype(runs):
            temporaries = [(group, _each(arena, group)) for _ in range(count)]
            for before, tensors in previous:
                _drop(arena, before, tensors)
            previous = temporaries
        for before, tensors in previous:
            _drop(arena, before, tensors)

    return step


def _in_place(arena: Arena, runs: Runs) -> None:
    """Kernels that work in place: nothing."""


def _one_by_one(step: Callable[[Tensor, list[Tensor]], None]) -> Callable[[Arena, Runs], None]:
    """A loop over the parameters; a list holds what its variables still hold in the next turn."""

    def loop(arena: Arena, runs: Runs) -> None:
        variables: list[Tensor] = []
        for repeats, parameters in runs:
            with _as_often(arena, repeats):
                for parameter in parameters:
                    step(parameter, variables)

    return loop


def _adam_alone(parameter: Tensor, variables: list[Tensor]) -> None:
    """denom = (exp_avg_sq.sqrt() / correction).add_(eps)."""
    root = parameter.like()
    denominator = parameter.like()
    del root
    variables[:] = [denominator]


def _lion_alone(parameter: Tensor, variables: list[Tensor]) -> None:
    """update = exp_avg.clone().mul_(beta).add(grad).sign_(), in a function of its own."""
    clone = parameter.like()
    update = parameter.like()
    del clone, update


def _adafactor_alone(parameter: Tensor, variables: list[Tensor]) -> None:
    """torch.optim: the means of rows and columns, and the update that their product becomes."""
    shape = parameter.shape
    if len(shape) < 2:
        square = parameter.like()
        update = parameter.like()
        variables[2:] = [square, update]
        return
    row = parameter.like((*shape[:-1], 1))
    variables[:1] = [row]
    variables[1:2] = [_reduce_columns(parameter, parameter.dtype)]
    variables[2:] = [_product(parameter, shape)]


def _adafactor_float32(parameter: Tensor, variables: list[Tensor]) -> None:
    """transformers: gradient and parameter in float32, the update before and after it is factored.

    The list holds the update, the gradient and the parameter.
    """
    is_short = parameter.dtype.itemsize < FLOAT32.itemsize
    if not variables:
        variables += [parameter] * 3
    for place in (1, 2):
        variables[place] = parameter  # what was there goes before there is a new one
        if is_short:
            variables[place] = parameter.like(dtype=FLOAT32)
    square = parameter.like(dtype=FLOAT32)
    variables[0] = parameter.like(dtype=FLOAT32)
    del square
    if len(parameter.shape) > 1:
        _reduce_columns(parameter, FLOAT32)
        factors = [parameter.like(parameter.shape[:-1], FLOAT32), _column(parameter, FLOAT32)]
        variables[0] = parameter.like(dtype=FLOAT32)
        del factors
    else:
        variables[0] = parameter.like(dtype=FLOAT32)
    negated = parameter.like(dtype=FLOAT32)
    del negated


def _column(parameter: Tensor, dtype: DType) -> Tensor:
    return parameter.like((*parameter.shape[:-2], 1, parameter.shape[-1]), dtype)


def _reduce_columns(parameter: Tensor, dtype: DType) -> Tensor:
    """A number for each column of a matrix, and the scratch tensors of such a reduction."""
    out = _column(parameter, dtype)
    rows, columns = parameter.shape[-2:]
    if len(parameter.shape) == 2:
        sizes = scratch_of_columns(parameter.arena.machine, rows, columns, dtype)
        scratch = [parameter.arena.take(size) for size in sizes]
        del scratch
    return out


def _product(like: Tensor, shape: Sequence[int], dtype: DType | None = None) -> Tensor:
    """A product of matrices, beside which cuBLAS has its workspace."""
    out = like.like(tuple(shape), dtype)
    if out.arena.blas_workspace_bytes:
        out.arena.take(out.arena.blas_workspace_bytes, Category.WORKSPACE)
    return out


def _muon_alone(parameter: Tensor, variables: list[Tensor]) -> None:
    """Newton-Schulz in bfloat16: five turns of two small products and a large one."""
    update = parameter.like()
    variables.clear()
    side, shape = min(parameter.shape), parameter.shape
    whole = parameter.like(dtype=BFLOAT16)
    gram = product = None
    for _ in range(5):
        gram = _product(parameter, (side, side), BFLOAT16)
        product = _product(parameter, (side, side), BFLOAT16)
        whole = _product(parameter, shape, BFLOAT16)
    del gram, product, update
    variables[:] = [whole]


def clip_gradients(arena: Arena, runs: Runs) -> None:
    """torch.nn.utils.clip_grad_norm_: a norm for each gradient, by way of one for each chunk of it.

    Counts: the norms, and the kernel's offsets and chunks while it runs.
    Ignores: the total of the norms, a number. Error: none beside it.
    Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu.
    """
    norms: list[tuple[int, list[Storage]]] = []
    for group in _by_dtype(runs):
        count = sum(run.repeats * len(run.parameters) for run in group)
        num_chunks = sum(
            run.repeats * ceil(parameter.numel / _CHUNK)
            for run in group
            for parameter in run.parameters
        )
        offsets = arena.take((count + 1) * INT64.itemsize)
        chunks = arena.take(num_chunks * FLOAT32.itemsize)
        for repeats, parameters in group:
            with _as_often(arena, repeats):
                norms.append(
                    (repeats, [arena.take(parameter.dtype.itemsize) for parameter in parameters])
                )
        del offsets, chunks
    for repeats, storages in norms:
        with _as_often(arena, repeats):
            storages.clear()


_CHUNK: Final = 65_536

_ADAM, _BITSANDBYTES = "torch/optim/adam.py", "bitsandbytes/optim/optimizer.py"
_TABLES: Final = (TABLE_BYTES, TABLE_BYTES)
MATRICES, NO_EMBEDDINGS = "the matrices of the layers", "all but embeddings"
_ADAMW: Final = Optimizer(states_like(2), _foreach(1), "torch.optim.AdamW, foreach", _ADAM)
OPTIMIZERS: Final = {
    "adamw": _ADAMW,
    "adam": Optimizer(states_like(2), _foreach(1), "torch.optim.Adam, foreach", _ADAM),
    "adamw-fused": Optimizer(fused_states, _in_place, "torch.optim.AdamW(fused=True)", _ADAM),
    "adamw-loop": Optimizer(
        states_like(2), _one_by_one(_adam_alone), "torch.optim.AdamW(foreach=False)", _ADAM
    ),
    "adamw-amsgrad": Optimizer(
        states_like(3), _foreach(1), "torch.optim.AdamW(amsgrad=True)", _ADAM
    ),
    "adamw-8bit": Optimizer(
        bytewise_states, _in_place, "bitsandbytes.optim.AdamW8bit", _BITSANDBYTES, _TABLES
    ),
    "adamw-8bit-paged": Optimizer(
        paged_states, _in_place, "bitsandbytes.optim.PagedAdamW8bit", _BITSANDBYTES, _TABLES
    ),
    "adamw-8bit-trainer": Optimizer(
        bytewise_states, _in_place,
        'Trainer(optim="adamw_bnb_8bit"), which keeps the states of embeddings in 32 bits',
        "transformers/trainer.py", _TABLES, part=NO_EMBEDDINGS,
        rest=Optimizer(wide_states, _in_place, "bitsandbytes.optim.AdamW", _BITSANDBYTES),
    ),
    "adamw-paged": Optimizer(
        paged_wide_states, _in_place, "bitsandbytes.optim.PagedAdamW", _BITSANDBYTES
    ),
    "adamw-8bit-torchao": Optimizer(
        torchao_states, _in_place,
        "torchao.optim.AdamW8bit, whose compiled step is taken to need nothing",
        "torchao/optim/subclass_8bit.py",
    ),
    "sgd": Optimizer(states_like(0), _in_place, "torch.optim.SGD", "torch/optim/sgd.py"),
    "momentum": Optimizer(
        states_like(1), _in_place, "torch.optim.SGD(momentum)", "torch/optim/sgd.py"
    ),
    "adafactor": Optimizer(
        factored_states, _one_by_one(_adafactor_alone), "torch.optim.Adafactor",
        "torch/optim/_adafactor.py",
    ),
    "adafactor-transformers": Optimizer(
        factored_float32_states, _one_by_one(_adafactor_float32), "transformers.Adafactor",
        "transformers/optimization.py",
    ),
    "adagrad": Optimizer(
        states_like(1), _foreach(2), "torch.optim.Adagrad", "torch/optim/adagrad.py",
        is_prepared_at_once=True,
    ),
    "rmsprop": Optimizer(
        states_like(1), _foreach(1), "torch.optim.RMSprop", "torch/optim/rmsprop.py"
    ),
    "lion": Optimizer(
        states_like(1), _one_by_one(_lion_alone), "lion_pytorch.Lion",
        "lion_pytorch/lion_pytorch.py",
    ),
    "muon": Optimizer(
        states_like(1), _one_by_one(_muon_alone),
        "torch.optim.Muon for the matrices of the layers, AdamW for the rest",
        "torch/optim/_muon.py", part=MATRICES, rest=_ADAMW,
    ),
}  # fmt: skip
