"""The memory that storages live in, and the log of what came and went.

arena = Arena()
storage = arena.take(4096)      # live until nobody refers to it
arena.log.requested             # [4096]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ullage.log.category import Category
from ullage.log.ties import FIRST_BY_AGE
from ullage.players.eager.training.eager.dtype import DType
from ullage.players.eager.training.eager.machine import Machine

if TYPE_CHECKING:
    from ullage.players.eager.training.eager.kernels import Recorder

_OPEN: Final = 1 << 62
_ROUNDING: Final = 511


class Section:
    """A stretch of the log that belongs together: a layer's forward pass, the optimizer's step.

    Attributes:
        name: such as "layers".
        phase: "build", "forward", "backward", "states", "optimizer" or "".
        repeats: how many times in a row the real program runs it.
        begin, end: positions in the log; the end is exclusive.
    """

    __slots__ = ("begin", "end", "name", "phase", "repeats")

    def __init__(self, name: str, phase: str, repeats: int, begin: int) -> None:
        self.name = name
        self.phase = phase
        self.repeats = repeats
        self.begin = begin
        self.end = _OPEN

    @property
    def is_open(self) -> bool:
        """It has not ended yet."""
        return self.end == _OPEN


class Scope(NamedTuple):
    """A module of the model.

    Attributes:
        path: its name in the model, such as "layers.{}.mlp", with {} for the number of its layer.
        kind: its class.
        first, step, repeats: the numbers of the layers that it stands for.
        is_checkpointed: it is in a layer that is recomputed in the backward pass.
        parameters: the names of its own parameters, by the number of their storage.
    """

    path: str = ""
    kind: str = ""
    first: int = 0
    step: int = 0
    repeats: int = 1
    is_checkpointed: bool = False
    parameters: Mapping[int, str] = {}


class Log:
    """Allocations and frees. A storage has a number; a position is the number of earlier events.

    Attributes:
        requested: bytes asked for, by storage.
        categories: owner of each storage; where None, the phases of its lifetime decide.
        precisions: torch's name of the type of its numbers; "": not known.
        events: the storage's number at its allocation, and the complement of it at its free.
        sections: sections in the order of their begin; no section is inside another.
        phases: (position, name) of each phase that begins; it ends where the next one begins.
        assumed: (lowest, highest) bytes of a storage whose size a closed library decides.
        streams: streams of the storages that are not allocated on the model's own stream.
        scopes: id() of the module that each storage was made in; 0: outside of modules.
        operators: the function that made it, as code; None: not known.
        owners: of a gradient or an optimizer's state the storage of its parameter.
        modules: what the ids in `scopes` mean.
        zeroes_late: zero_grad() comes between forward and backward.
        chooses_by_age: of free blocks of a size the allocator takes that of the oldest segment.
        work: floating-point operations of all products of matrices, two for each element of a sum;
            attention's own kernels are not among them.
    """

    __slots__ = (
        "assumed", "categories", "chooses_by_age", "events", "modules", "operators", "owners",
        "phases", "precisions", "requested", "scopes", "sections", "streams", "work",
        "zeroes_late",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.categories: list[Category | None] = []
        self.precisions: list[str] = []
        self.events: list[int] = []
        self.sections: list[Section] = []
        self.phases: list[tuple[int, str]] = []
        self.assumed: dict[int, tuple[int, int]] = {}
        self.streams: dict[int, int] = {}
        self.scopes: list[int] = []
        self.operators: list[CodeType | None] = []
        self.owners: dict[int, int] = {}
        self.modules: dict[int, Scope] = {}
        self.zeroes_late = False
        self.chooses_by_age = True
        self.work = 0

    @property
    def position(self) -> int:
        """Events so far."""
        return len(self.events)

    def size(self, storage: int) -> int:
        """Its requested bytes, rounded up to 512 bytes as the allocator does."""
        return (self.requested[storage] + _ROUNDING) & ~_ROUNDING

    def freeze(self) -> Log:
        """The same, to which nothing is added."""
        other = copy(self)
        other.events = list(self.events)
        return other


class Storage:
    """Bytes on the device; they are given back when nothing refers to this any more."""

    __slots__ = ("arena", "index")

    def __init__(self, arena: Arena, index: int) -> None:
        self.arena = arena
        self.index = index

    def __del__(self) -> None:
        self.arena.log.events.append(~self.index)

    def own(self, category: Category, of: Storage | None = None) -> None:
        """Says whose it is, and of which parameter."""
        self.arena.log.categories[self.index] = category
        if of is not None:
            self.arena.log.owners[self.index] = of.index

    @property
    def category(self) -> Category | None:
        """Whose it was said to be."""
        return self.arena.log.categories[self.index]

    @property
    def nbytes(self) -> int:
        """Bytes as the allocator counts them: a multiple of 512."""
        return self.arena.log.size(self.index)


class Arena:
    """A device's memory while a model runs on it.

    Attributes:
        log: what came and went.
        machine: the GPU and PyTorch that it is on.
        scope: id() of the module that is called, or whose operator's gradient is computed.
        operator: the code of the operator that runs, or of its backward rule.
        is_recording: autograd builds a graph (torch.is_grad_enabled()).
        is_training: modules are in training mode.
        checkpoints_every: N where every Nth layer of a stack is checkpointed; 0: none is.
        is_selective: checkpoints keep the outputs of matrix products and of attention.
        is_compiled: element-wise operators are fused, and recomputed rather than kept, as the
            partitioner of torch.compile has it.
        keeps_alternate: of the outputs of matrix products they keep every second one.
        is_attention_eager: attention is written out, so that every score is kept.
        blas_workspace_bytes: what a product of matrices takes for as long as it runs.
        autocast: the dtype of torch.autocast; None outside of it.
        casts: parameters in that dtype, by index of their storage: (section, tensor). They stay
            until autocast ends.
        steps_with: the step of an optimizer that runs in the backward pass: called with a parameter
            once it has its gradient, which is then freed.
        retained: what autograd functions of their own keep until their graph goes, by section.
        held: tensors that a variable of the training loop holds until it gets new ones.
        sharding: how ranks share out parameters (sharding.py); None: they do not.
        recorder: collects the kernels that are launched; None: nobody asked for time.
    """

    __slots__ = (
        "__dict__", "autocast", "blas_workspace_bytes", "casts", "checkpoints_every", "held",
        "is_attention_eager", "is_compiled", "is_recording", "is_selective", "is_training",
        "keeps_alternate", "log", "machine", "operator", "recorder", "retained", "scope",
        "sharding", "steps_with",
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine = Machine(),  # noqa: B008
        *,
        checkpoints_every: int = 0,
        is_selective: bool = False,
        is_compiled: bool = False,
        keeps_alternate: bool = False,
        is_attention_eager: bool = False,
    ) -> None:
        self.log = Log()
        self.log.chooses_by_age = machine.torch >= FIRST_BY_AGE
        self.machine = machine
        self.checkpoints_every = checkpoints_every
        self.is_selective = is_selective
        self.is_compiled = is_compiled
        self.keeps_alternate = keeps_alternate
        self.is_attention_eager = is_attention_eager
        self.blas_workspace_bytes = machine.blas_workspace_bytes
        self.scope = 0
        self.operator: CodeType | None = None
        self.is_recording = True
        self.is_training = True
        self.autocast: DType | None = None
        self.casts: dict[int, tuple[Section | None, Any]] = {}
        self.steps_with: Callable[[Any], None] | None = None
        self.retained: list[tuple[Section | None, Any]] = []
        self.held: list[Any] = []
        self.sharding: Any = None
        self.recorder: Recorder | None = None

    def take(self, nbytes: int, category: Category | None = None, precision: str = "") -> Storage:
        """A new storage. An empty one takes nothing, as in PyTorch."""
        log = self.log
        requested = log.requested
        index = len(requested)
        requested.append(nbytes)
        log.categories.append(category)
        log.precisions.append(precision)
        log.scopes.append(self.scope)
        log.operators.append(self.operator)
        log.events.append(index)
        return Storage(self, index)

    def begin(self, phase: str) -> None:
        """Notes that a phase begins, such as "forward". A section that is still open ends: the
        backward pass of a first layer has no boundary behind it.
        """
        log = self.log
        log.phases.append((log.position, phase))
        self.scope, self.operator = 0, None
        if log.sections and log.sections[-1].is_open:
            log.sections[-1].end = log.position

    def assume(self, low: int, likely: int, high: int) -> Storage:
        """A workspace of a closed library: as large as is likely, and between two ends."""
        storage = self.take(likely, Category.WORKSPACE)
        if high > low:
            self.log.assumed[storage.index] = (low, high)
        return storage

    @contextmanager
    def section(self, name: str, phase: str, repeats: int = 1) -> Iterator[None]:
        """Notes that what happens within belongs together, and how often it is repeated."""
        section = Section(name, phase, repeats, self.log.position)
        self.log.sections.append(section)
        try:
            yield
        finally:
            section.end = self.log.position

    @contextmanager
    def recording(self, *, is_on: bool = True) -> Iterator[None]:
        """torch.set_grad_enabled."""
        before, self.is_recording = self.is_recording, is_on
        try:
            yield
        finally:
            self.is_recording = before

    @contextmanager
    def autocasting(self, dtype: DType | None) -> Iterator[None]:
        """torch.autocast; None: without it."""
        outer, self.autocast = self.autocast, dtype
        try:
            yield
        finally:
            self.autocast = outer
            if outer is None:
                self._drop_casts()

    def retain(self, tensor: Any) -> None:  # noqa: ANN401
        """A reference that a node of the graph has beside what it saved (ctx.name = tensor)."""
        self.retained.append((self.open_section, tensor))

    def count_work(self, operations: int) -> None:
        """Notes a product of matrices, as often as its section is repeated."""
        section = self.open_section
        self.log.work += operations * (1 if section is None else section.repeats)

    @property
    def open_section(self) -> Section | None:
        """The section that has not ended."""
        sections = self.log.sections
        return sections[-1] if sections and sections[-1].is_open else None

    def drop(self, rows: list[tuple[Section | None, Any]]) -> None:
        """Releases tensors: of those of a section that is repeated, as often as it was."""
        while rows:
            section = rows[0][0]
            if section is None or section.is_open:
                rows.pop(0)
                continue
            with self.section(section.name, section.phase, section.repeats):
                while rows and rows[0][0] is section:
                    rows.pop(0)

    def _drop_casts(self) -> None:
        casts, self.casts = list(self.casts.values()), {}
        self.drop(casts)
