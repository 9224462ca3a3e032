"""The kernels that a played step launches, in their order: what each reads, writes and computes.

arena.recorder = Recorder(arena.log)
...                                  # play
arena.recorder.finish()              # [(position in the log, Kernel), ...]

Operators that say nothing launch what their memory tells: in a forward pass one kernel that reads
all inputs and writes all that is new; in a backward pass one for each new tensor, which reads the
gradient and one of the tensors that were saved. Others say what they launch (`launch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ullage.players.eager.training.eager.arena import Arena, Log
    from ullage.players.eager.training.eager.dtype import DType
    from ullage.players.eager.training.eager.tensor import Tensor


class Kind(Enum):
    """The work of a kernel; the numbers of a kernel are in brackets, where it has some.

    CONVOLUTION: (multiplications and additions, groups). ATTENTION: (is backward, sequences,
    heads, heads of keys, queries, keys, width of a head, is causal), by the kernel `name`. LISTS:
    all tensors of an optimizer (lists, lists that are read, numbers of a list), by the functor
    `name`. COLLECTIVE: (ranks) by `name`. RECORD, WAIT: of the last event of the stream in
    brackets. READY: a gradient that ranks are to sum (number of the parameter).
    """

    POINTWISE = "pointwise"
    CAST = "cast"
    STRIDED = "strided"
    ROWS = "rows"
    ROWS_BACKWARD = "rows, backward"
    SUM = "sum"
    LOOKUP = "rows by index"
    JOIN = "join"
    LISTS = "lists"
    PRODUCT = "product"
    GROUPED = "grouped product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    COLLECTIVE = "collective"
    RECORD = "record"
    WAIT = "wait"
    READY = "ready"


class Kernel(NamedTuple):
    """A launch.

    Attributes:
        kind: what it does.
        operands: bytes of each tensor, the result first.
        numbers: of a product (rows, columns, length of the sums, batch or groups); of element-wise
            kernels (elements); else see Kind.
        precision: torch's name of the numbers' type.
        name: which of its kind.
        stream: 0: the model's own.
    """

    kind: Kind
    operands: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    precision: str = ""
    name: str = ""
    stream: int = 0


class Trained(NamedTuple):
    """The tensors that an optimizer steps.

    Attributes:
        numel: numbers.
        itemsize: bytes of one.
        precision: torch's name of their type.
        num_tensors: how many parameters there are.
    """

    numel: int
    itemsize: int
    precision: str
    num_tensors: int


class _Operand(NamedTuple):
    """A tensor, without a reference to its memory, which would live longer by it."""

    storage: int
    numel: int
    dtype: DType
    is_dense: bool
    is_permuted: bool

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def lies_like(self, other: _Operand) -> bool:
        """True if a kernel reads it in the order in which it writes the other."""
        if self.numel != other.numel:
            return False
        return self.is_permuted == other.is_permuted and (self.is_dense or self.is_permuted)


# New tensors of less than this share of an operator's largest are a part of its kernel.
_SMALL: Final = 1 / 16


class Recorder:
    """Collects the kernels of a play.

    Attributes:
        is_causal: attention without a mask is causal.
    """

    def __init__(self, log: Log, *, is_causal: bool = True) -> None:
        self.is_causal = is_causal
        self._log = log
        self._kernels: list[tuple[int, Kernel]] = []
        self._operands: list[_Operand] = []
        self._is_backward = False
        self._pending: list[tuple[int, _Operand]] = []
        self._saved: list[_Operand] = []
        self._largest = 0
        self._has_said = False

    def begin(self, inputs: Sequence[Tensor | None]) -> None:
        """An operator begins."""
        self._flush()
        self._operands = [_operand(tensor) for tensor in inputs if tensor is not None]
        self._is_backward = False

    def begin_backward(self, gradient: Tensor, saved: Sequence[Tensor]) -> None:
        """The rule of an operator begins."""
        self._flush()
        self._operands = [_operand(gradient)]
        self._saved = [_operand(tensor) for tensor in saved if tensor.dtype.is_floating]
        self._is_backward = True

    def wrote(self, out: Tensor) -> None:
        """An operator has new memory for a tensor."""
        self._pending.append((self._position, _operand(out)))
        self._largest = max(self._largest, out.nbytes)

    def launch(self, kind: Kind, out: Tensor, reads: Sequence[Tensor]) -> None:
        """A kernel that writes a tensor, and what it reads."""
        result = _operand(out)
        self._pending = [row for row in self._pending if row[1].storage != result.storage]
        operands = [_operand(tensor) for tensor in reads]
        kernel = _kernel(result, operands, kind)
        self._kernels.append((self._position, kernel))
        self._has_said = True

    def add(self, kernel: Kernel) -> None:
        """A kernel of which all is known."""
        self._kernels.append((self._position, kernel))

    def ready(self, leaf: Tensor) -> None:
        """A parameter has a gradient. One that is used several times is ready the last time."""
        index = leaf.storage.index
        kernel = Kernel(Kind.READY, (leaf.nbytes,), (index,))
        self._kernels = [row for row in self._kernels if row[1] != kernel]
        self.add(kernel)

    def clear(self) -> None:
        """Forgets what came before a step."""
        self._flush()
        self._kernels.clear()

    def finish(self) -> list[tuple[int, Kernel]]:
        """All kernels, by their positions in the log."""
        self._flush()
        return sorted(self._kernels, key=lambda row: row[0])

    @property
    def _position(self) -> int:
        """That of the last event: a kernel belongs to what was made for it."""
        return max(0, self._log.position - 1)

    def _flush(self) -> None:
        pending = [row for row in self._pending if row[1].nbytes >= _SMALL * self._largest]
        has_said, self._has_said = self._has_said, False
        self._pending, self._largest = [], 0
        if not pending:
            return
        if self._is_backward or has_said:
            for place, (position, out) in enumerate(pending):
                saved = self._saved[min(place, len(self._saved) - 1) :][:1]
                saved = saved if self._is_backward else []
                self._kernels.append((position, _kernel(out, [*self._operands, *saved])))
            return
        (position, out), *others = pending
        kernel = _kernel(out, self._operands)
        more = tuple(operand.nbytes for _, operand in others)
        operands = (*kernel.operands, *more)
        self._kernels.append((position, kernel._replace(operands=operands)))


def _operand(tensor: Tensor) -> _Operand:
    return _Operand(
        tensor.storage.index, tensor.numel, tensor.dtype, tensor.is_dense, tensor.is_permuted
    )


def _kernel(out: _Operand, reads: Sequence[_Operand], kind: Kind | None = None) -> Kernel:
    if kind is None:
        kind = Kind.POINTWISE
        if not all(operand.lies_like(out) for operand in reads):
            kind = Kind.STRIDED
        elif any(operand.dtype.itemsize != out.dtype.itemsize for operand in reads):
            kind = Kind.CAST if len(reads) == 1 else Kind.STRIDED
    sizes = (operand.nbytes for operand in reads)
    return Kernel(kind, (out.nbytes, *sizes), (out.numel,), out.dtype.name)


def collect(arena: Arena, name: str, num_bytes: int, ranks: int, stream: int = 0) -> None:
    """Notes a collective of a group, where kernels are recorded."""
    if arena.recorder is not None and ranks > 1:
        kernel = Kernel(Kind.COLLECTIVE, (num_bytes,), (ranks,), name=name, stream=stream)
        arena.recorder.add(kernel)


def order(arena: Arena, before: int, after: int) -> None:
    """Notes that a stream waits for what another has been given so far."""
    if arena.recorder is not None:
        arena.recorder.add(Kernel(Kind.RECORD, stream=before))
        arena.recorder.add(Kernel(Kind.WAIT, numbers=(before,), stream=after))


def launch(kind: Kind, out: Tensor, *reads: Tensor) -> None:
    """Notes the kernel that writes a tensor, where kernels are recorded."""
    recorder = out.storage.arena.recorder
    if recorder is not None:
        recorder.launch(kind, out, reads)


@contextmanager
def paused(arena: Arena, kernel: Kernel | None = None) -> Iterator[None]:
    """Makes what is made within a part of one kernel, or of none."""
    recorder, arena.recorder = arena.recorder, None
    try:
        yield
    finally:
        arena.recorder = recorder
        if recorder is not None and kernel is not None:
            recorder.add(kernel)
