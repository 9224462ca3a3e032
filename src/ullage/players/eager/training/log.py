"""The log of an estimate: a snapshot with a record in it, as a watched program leaves them.

    snapshot = write_log(estimate)
    explain_snapshot(snapshot)          # owners, modules, findings, steps

csrc/play_log.c unrolls the played step: a row for each block that comes or goes, where the
allocator puts it, and in which repetition of a layer. Frames of stacks are the operator, as torch
names it, and the module: its class, and its path with a star for the number of its layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.ground.version import __version__
from ullage.log.assumptions import Assumption, AssumptionKind
from ullage.log.blocks import MAX_ADDRESS, BoolArray
from ullage.log.category import Category
from ullage.log.model import Int32Array
from ullage.log.record_schema import PRECISIONS, SCHEMA
from ullage.log.snapshot import (
    Action,
    Annotation,
    BlockState,
    BlockTable,
    EventTable,
    Frames,
    Int64Array,
    SegmentTable,
    Snapshot,
    Stacks,
    UInt8Array,
    UInt32Array,
)
from ullage.players.eager.training.eager.arena import Log, Scope
from ullage.players.eager.training.estimate import OUTSIDE
from ullage.players.eager.training.totals import Stretch, play

if TYPE_CHECKING:
    from ullage.players.eager.training.estimate import TrainingEstimate

_CATEGORIES: Final = tuple(Category)
_CLAIMED: Final = frozenset(
    {
        Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.GRADIENT,
        Category.COMMUNICATION, Category.INPUT,
    }
)  # fmt: skip
_WITH_GRAPH: Final = 2
_SMALL_SEGMENT_BYTES: Final = 2 << 20
_LOWEST_ADDRESS: Final = 32 << 20
# What the player calls otherwise than torch does.
_OPERATORS: Final = {
    "_backward_rule": "scaled_dot_product_attention", "pow2": "pow", "convolve": "convolution",
    "causal_mask": "create_causal_mask", "eager_mask": "create_causal_mask",
}  # fmt: skip
_CHECKPOINT: Final = ("torch/utils/checkpoint.py", "checkpoint")
_MARKED: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class _Unrolled:
    """The tensors that came and went, in order, as columns; and what the program passes through.

    Attributes:
        storage: number in the played log.
        is_birth: else it goes.
        run, turn: number of the run, and which repetition of it.
        address, size_bytes: of its block.
        reserved_bytes: of the allocator, after it.
        category: of the storage, as an index into the categories.
        repeats, is_backward: of the run.
        runs: of the program; num_first of them are the first step.
    """

    storage: Int64Array
    is_birth: BoolArray
    run: Int64Array
    turn: Int64Array
    address: Int64Array
    size_bytes: Int64Array
    reserved_bytes: Int64Array
    category: UInt8Array
    repeats: Int64Array
    is_backward: BoolArray
    runs: Sequence[Stretch]
    num_first: int


def write_log(estimate: TrainingEstimate) -> Snapshot:
    """The log of an estimate, of two steps.

    Raises:
        SpecError: more is asked for than a log has addresses.
        UllageError: the native part was not built.
    """
    log = estimate.log
    rows = _unroll(log)
    if int((rows.address + rows.size_bytes).max(initial=0)) > MAX_ADDRESS:
        raise SpecError(
            f"found {format_bytes(estimate.reserved_bytes)} of memory, expected up to "
            f"{format_bytes(MAX_ADDRESS)}, whose addresses a log has; lower batch or length"
        )
    requested = np.array(log.requested, dtype=np.int64)
    streams = np.zeros(len(requested), dtype=np.int64)
    streams[[*log.streams]] = [*log.streams.values()]
    precision = np.array([*map(PRECISIONS.index, log.precisions)], dtype=np.uint8)
    places = _find_places(log, rows)
    scope, modules = _number_modules(places, rows)
    stack, stacks = _find_stacks(log, rows, places)
    table = _write_events(rows, requested, streams, stack)
    is_recomputed = rows.is_birth & (rows.category == _CATEGORIES.index(Category.ACTIVATION))
    is_recomputed &= rows.is_backward
    record = {
        **_describe_program(estimate),
        "devices": [_describe_device(estimate, rows, requested)],
        "basis": [assumption.row() for assumption in _assume(estimate)],
        "first_position": 0,
        "events": {
            "address": rows.address.tobytes(),
            "bytes": np.where(rows.is_birth, rows.size_bytes, -rows.size_bytes).tobytes(),
            "reserved": rows.reserved_bytes.tobytes(),
            "scope": scope.tobytes(),
            "device": bytes(len(rows.run)),
            "kind": (_WITH_GRAPH * is_recomputed).astype(np.uint8).tobytes(),
            "precision": precision[rows.storage].tobytes(),
        },
        "marks": list(_mark(rows, estimate)),
        "modules": modules,
        "claims": list(_claim(rows, places)),
        "workspaces": [
            [row + 1, 0, int(rows.address[row]), int(rows.size_bytes[row]), "a library"]
            for row in _births(rows, Category.WORKSPACE)
        ],
    }
    segments, blocks = _write_end(table, rows, requested, stack)
    optimizer = estimate.recipe.optimizer
    zero_grad = Annotation(f"Optimizer.zero_grad#{optimizer}.zero_grad", "START", 0, 0)
    return Snapshot(
        events=(table,), segments=segments, blocks=blocks, host_events=(),
        host_segments=_empty(SegmentTable, first_block=np.zeros(1, np.int64)),
        host_blocks=_empty(BlockTable), stacks=stacks, pools=((0, 0),), texts=("",), settings={},
        annotations=(zero_grad,), record=record, unknown={},
    )  # fmt: skip


def _unroll(log: Log) -> _Unrolled:
    played = play(log, with_events=True)
    events = np.frombuffer(played.events, np.int64).reshape(-1, 6).T
    event, run, turn, address, size, reserved = np.ascontiguousarray(events)
    address -= address.min(initial=np.iinfo(np.int64).max) - _LOWEST_ADDRESS
    storage = np.where(event >= 0, event, ~event)
    category = np.frombuffer(played.categories, np.uint8)[storage]
    repeats = np.array([each.repeats for each in played.runs])[run]
    is_backward = np.array([each.phase == "backward" for each in played.runs])[run]
    return _Unrolled(
        storage, event >= 0, run, turn, address, size, reserved, category, repeats, is_backward,
        played.runs, played.num_first,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Places:
    """Where in the model the storages belong.

    Attributes:
        scopes: the modules.
        made_in: (num_storages,) the module that made it; -1: none.
        parameter: (num_storages,) the storage of the parameter that it is, or is of; -1: none.
        scope: (num_rows,) the module that a row counts for: that of the parameter, or what made it.
        layer: (num_rows,) the number of that module's layer.
    """

    scopes: Sequence[Scope]
    made_in: Int64Array
    parameter: Int64Array
    scope: Int64Array
    layer: Int64Array


def _find_places(log: Log, rows: _Unrolled) -> _Places:
    scopes = list(log.modules.values())
    numbers = {key: number for number, key in enumerate(log.modules)}
    made_in = np.array([numbers.get(key, -1) for key in log.scopes], dtype=np.int64)
    # A parameter that is shared is its first module's.
    module_of: dict[int, int] = {}
    for number, each in enumerate(scopes):
        for storage in each.parameters:
            module_of.setdefault(storage, number)
    parameter = np.full(len(made_in), -1, dtype=np.int64)
    parameter[[*module_of]] = [*module_of]
    for storage, owner in log.owners.items():
        while owner in log.owners:  # a state of a copy of the parameter
            owner = log.owners[owner]
        parameter[storage] = owner if owner in module_of else -1
    home = np.append(made_in, -1)
    home[[*module_of]] = [*module_of.values()]
    scope = np.where(parameter >= 0, home[parameter], made_in)[rows.storage]
    # A backward pass goes through layers from the last to the first.
    first, step, repeats = (
        np.array([*(getattr(one_scope, name) for one_scope in scopes), 0], dtype=np.int64)[scope]
        for name in ("first", "step", "repeats")
    )
    turn = np.where(rows.is_backward, rows.repeats - 1 - rows.turn, rows.turn)
    layer = first + step * np.where(rows.repeats == repeats, turn, 0)
    return _Places(scopes, made_in, parameter, scope, layer)


def _number_modules(places: _Places, rows: _Unrolled) -> tuple[Int32Array, list[str]]:
    """(num_rows,) the number of each birth's module, or -1, and the names, the model's first."""
    unit = int(places.layer.max(initial=0)) + 1
    keys, place = np.unique(places.scope * unit + places.layer, return_inverse=True)
    names = {"": 0}
    numbers = [
        names.setdefault(places.scopes[key // unit].path.format(key % unit), len(names))
        if key >= 0
        else -1
        for key in keys.tolist()
    ]
    scope = np.where(rows.is_birth, np.array(numbers, dtype=np.int32)[place], -1)
    return scope.astype("<i4"), list(names)


def _claim(rows: _Unrolled, places: _Places) -> Iterator[list[Any]]:
    """Whose the blocks are that phases do not tell: position, device, address, category, name."""
    for category in _CLAIMED:
        for row in _births(rows, category):
            parameter, name = int(places.parameter[rows.storage[row]]), ""
            if parameter >= 0:
                scope = places.scopes[places.scope[row]]
                own = scope.parameters[parameter]
                name = f"{scope.path.format(places.layer[row])}.{own}".lstrip(".")
            yield [row + 1, 0, int(rows.address[row]), category.value, name]


def _births(rows: _Unrolled, category: Category) -> list[int]:
    is_its = rows.is_birth & (rows.category == _CATEGORIES.index(category))
    return np.flatnonzero(is_its).tolist()


def _find_stacks(log: Log, rows: _Unrolled, places: _Places) -> tuple[UInt32Array, Stacks]:
    """(num_storages,) the stack of each, innermost frame first: the operator, or the node of the
    graph that it has in backward; the module; the checkpoint that it is in.
    """
    in_backward = np.zeros(len(places.made_in), dtype=np.bool_)
    births = np.flatnonzero(rows.is_birth)
    in_backward[rows.storage[births]] = rows.is_backward[births]
    frames: dict[tuple[str, str], int] = {}
    stacks: dict[tuple[int, ...], int] = {(): 0}
    of_storage = np.zeros(len(places.made_in), dtype=np.uint32)
    for storage, (code, module, is_backward) in enumerate(
        zip(log.operators, places.made_in.tolist(), in_backward.tolist(), strict=True)
    ):
        texts = [] if code is None else [("", _name_operator(code.co_qualname, is_backward))]
        if module >= 0:
            scope = places.scopes[module]
            texts += [(scope.kind, scope.path.replace("{}", "*"))]
            texts += [_CHECKPOINT] * scope.is_checkpointed
        stack = tuple(frames.setdefault(text, len(frames)) for text in texts)
        of_storage[storage] = stacks.setdefault(stack, len(stacks))
    ends = np.cumsum([0, *map(len, stacks)])
    return of_storage, Stacks(
        Frames(
            tuple(file for file, _ in frames), np.zeros(len(frames), np.int64),
            tuple(name for _, name in frames),
        ),
        ends, np.array([frame for stack in stacks for frame in stack], dtype=np.uint32),
    )  # fmt: skip


def _name_operator(qualified: str, is_backward: bool) -> str:  # noqa: FBT001
    """The function of its frame, as in a stack of C++."""
    name = qualified.partition(".")[0]
    name = _OPERATORS.get(name, name.lstrip("_"))
    if is_backward:
        return f"torch::autograd::generated::{name.title().replace('_', '')}Backward0::apply"
    return f"at::_ops::{name}::call"


def _mark(rows: _Unrolled, estimate: TrainingEstimate) -> Iterator[list[Any]]:
    """Where phases and steps begin and end: position, kind, details."""
    begins = np.searchsorted(rows.run, np.arange(len(rows.runs))).tolist()
    recipe, open_phase, step = estimate.recipe, ("", -1), 0
    autocast = recipe.precision.startswith("amp")
    sizes = [recipe.batch, recipe.length] if recipe.length else [recipe.batch]
    details = {
        "forward_begin": {"grad": True, "training": True, "module": 0},
        "forward_end": {"inputs": [sizes], "tokens": prod(sizes), "autocast": autocast},
    }
    ends = [*zip(begins, rows.runs, strict=True), (len(rows.run), None)]
    for number, (position, run) in enumerate(ends):
        phase = ("", -1)
        if run is not None and not run.is_between:
            # The first step of an optimizer makes its states.
            is_step = run.phase in ("states", "optimizer")
            phase = ("optimizer", -1) if is_step else (run.phase, run.part)
        if phase != open_phase:
            for (name, _), side in ((open_phase, "end"), (phase, "begin")):
                if side == "begin" and (run is None or (step == 0 and number >= rows.num_first)):
                    yield [position, "step", step]
                    step += 1
                kind = f"{name}_{side}"
                if name in _MARKED:
                    yield [position, kind, details.get(kind)]
            open_phase = phase


def _describe_program(estimate: TrainingEstimate) -> dict[str, Any]:
    """The program that ran, which is a recipe."""
    return {
        "schema": SCHEMA, "ullage": __version__, "torch": estimate.torch, "cuda": None,
        "python": "", "argv": ["estimate", estimate.model], "pid": 0, "rank": None,
        "started_s": 0.0, "ended_s": 0.0, "recipe": list(list_recipe(asdict(estimate.recipe))),
        "exit": {"kind": "returned", "exception": None, "message": None, "where": None, "code": 0},
    }  # fmt: skip


def _assume(estimate: TrainingEstimate) -> Iterator[Assumption]:
    """Which program was played, and of what it takes the intervals."""
    for line in estimate.assumptions:
        yield Assumption(AssumptionKind.PLAY, line)
    for term in estimate.terms:
        if term.low_bytes < term.high_bytes and term.name not in OUTSIDE:
            ends = (term.low_bytes, term.bytes, term.high_bytes)
            yield Assumption(AssumptionKind.PLAY, f"{term.name}, {term.source}", "", 1, *ends)


def list_recipe(fields: Mapping[str, Any], of: str = "") -> Iterator[list[str]]:
    """An estimate's options: [name, value], those of adapters and the layout by their own names."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from list_recipe(value, f"{of}{name} ")
        else:
            yield [f"{of}{name}", "none" if value is None else str(value)]


def _describe_device(
    estimate: TrainingEstimate, rows: _Unrolled, requested: Int64Array
) -> dict[str, Any]:
    """The device: its counters, and what lies outside of PyTorch's allocator."""
    sign = np.where(rows.is_birth, 1, -1)
    outside = {term.name: term for term in estimate.terms if term.name in OUTSIDE}
    nccl, context = outside.get("NCCL"), outside.get("context")
    reserved = np.append(rows.reserved_bytes, 0)
    return {
        "index": 0, "name": estimate.gpu_name,
        "total_bytes": estimate.capacity_bytes or 0,
        "context_bytes": 0 if context is None else context.bytes,
        "non_torch_bytes": 0 if nccl is None else nccl.high_bytes,
        "outside": [] if nccl is None else [
            Assumption(
                AssumptionKind.OUTSIDE, "NCCL", "", 1, nccl.low_bytes, nccl.high_bytes,
                nccl.high_bytes,
            ).row()
        ],
        "peak_of_all_bytes": 0, "place": 0,
        "peak_requested_bytes": int(np.cumsum(sign * requested[rows.storage]).max(initial=0)),
        "peak_allocated_bytes": int(np.cumsum(sign * rows.size_bytes).max(initial=0)),
        "peak_reserved_bytes": int(reserved.max()), "num_allocs": int(rows.is_birth.sum()),
        "num_segments": int((np.diff(reserved[:-1], prepend=0) > 0).sum()),
        "num_ooms": 0, "num_alloc_retries": 0,
    }  # fmt: skip


def _write_events(
    rows: _Unrolled, requested: Int64Array, streams: Int64Array, stack: UInt32Array
) -> EventTable:
    """The trace as in torch: a segment before its first block, and two events of a free."""
    growth = np.diff(rows.reserved_bytes, prepend=0)
    counts = np.where(rows.is_birth, 1 + (growth > 0), 2)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_birth = rows.is_birth[row]
    is_segment = is_birth & (growth[row] > 0) & (place == 0)
    frees = np.where(place == 0, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    allocs = np.where(is_segment, Action.SEGMENT_ALLOC, Action.ALLOC)
    storage, nothing = rows.storage[row], np.zeros(len(row), dtype=np.uint32)
    return EventTable(
        action=np.where(is_birth, allocs, frees).astype(np.uint8),
        address=rows.address[row],
        size_bytes=np.where(is_segment, growth[row], requested[storage]),
        stream=streams[storage],
        time_us=np.zeros(len(row), dtype=np.int64),
        stack=np.where(is_birth, stack[storage], np.uint32(0)),
        forward_stack=nothing, pool=nothing, context=nothing,
    )  # fmt: skip


def _write_end(
    events: EventTable, rows: _Unrolled, requested: Int64Array, stack: UInt32Array
) -> tuple[SegmentTable, BlockTable]:
    """The segments at the end, none of which was given back, and their blocks."""
    news = np.flatnonzero(events.action == Action.SEGMENT_ALLOC)
    news = news[np.argsort(events.address[news], kind="stable")]
    begin, size = events.address[news], events.size_bytes[news]
    # What is live was the last thing to happen at its address.
    last = len(rows.run) - 1 - np.unique(rows.address[::-1], return_index=True)[1]
    live = last[rows.is_birth[last]]
    address, length = rows.address[live], rows.size_bytes[live]
    # A piece begins with its segment, with a block, or behind one.
    end = begin + size
    starts = np.unique(np.concatenate([begin, address, address + length]))
    starts = starts[~np.isin(starts, end) | np.isin(starts, begin)]
    segment = np.searchsorted(begin, starts, side="right") - 1
    length = np.minimum(np.append(starts[1:], end[-1:]), end[segment]) - starts
    place = np.minimum(np.searchsorted(address, starts), len(live) - 1)
    is_active = address[place] == starts
    storage = rows.storage[live][place]
    asked = np.where(is_active, requested[storage], 0)
    state = np.where(is_active, BlockState.ACTIVE, BlockState.INACTIVE).astype(np.uint8)
    frame = np.where(is_active, stack[storage], np.uint32(0))
    blocks = BlockTable(segment, starts, length, asked, state, frame)
    count, nothing = len(begin), np.zeros(len(begin), dtype=np.uint32)
    allocated, without_rounding = (
        np.bincount(segment, np.where(is_active, sizes, 0), count).astype(np.int64)
        for sizes in (length, asked)
    )
    return SegmentTable(
        device=np.zeros(count, dtype=np.int64), address=begin, total_bytes=size,
        allocated_bytes=allocated, active_bytes=allocated, requested_bytes=without_rounding,
        stream=events.stream[news], is_large=(size != _SMALL_SEGMENT_BYTES).astype(np.uint8),
        is_expandable=nothing.astype(np.uint8), pool=nothing, stack=nothing,
        first_block=np.searchsorted(segment, np.arange(count + 1)),
    ), blocks  # fmt: skip


def _empty(kind: type[Any], **columns: Any) -> Any:  # noqa: ANN401
    """A table without rows."""
    nothing = np.empty(0, dtype=np.int64)
    return kind(**{field.name: nothing for field in fields(kind)} | columns)
