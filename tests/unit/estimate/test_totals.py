"""The caching allocator's rules, and two steps of a program replayed by them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.facts.families.builtin import find_model
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training import totals
from ullage.players.eager.training.eager.arena import Arena, Log, Storage
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.training.totals import count_totals

MIB = 2**20


@dataclass
class Block:
    """A piece of a segment; free or not."""

    size: int
    is_free: bool = True


@dataclass
class PlainAllocator:
    """The allocator as one would explain it: segments are lists of blocks, every search looks at
    all of them.
    """

    segments: list[tuple[tuple[int, bool], list[Block]]] = field(default_factory=list)
    peak_bytes: int = 0
    is_measured: bool = False

    def allocate(self, size: int, stream: int = 0) -> Block:
        pool = (stream, size <= MIB)
        fitting = [
            (block.size, place, number)
            for place, (kind, blocks) in enumerate(self.segments)
            for number, block in enumerate(blocks)
            if kind == pool and block.is_free and block.size >= size
        ]
        if not fitting:
            own = -(-size // (2 * MIB)) * 2 * MIB
            whole = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else own
            self.segments.append((pool, [Block(whole)]))
            fitting = [(whole, len(self.segments) - 1, 0)]
        _, place, number = min(fitting)
        blocks = self.segments[place][1]
        block, rest = blocks[number], blocks[number].size - size
        block.is_free = False
        if rest >= 512 if size <= MIB else rest > MIB:
            block.size = size
            blocks.insert(number + 1, Block(rest))
        self.note()
        return block

    def note(self) -> None:
        if self.is_measured:
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    @property
    def live_bytes(self) -> int:
        return sum(block.size for _, among in self.segments for block in among if not block.is_free)

    def free(self, block: Block) -> None:
        block.is_free = True
        for _, blocks in self.segments:
            for number in range(len(blocks) - 1, 0, -1):
                if blocks[number].is_free and blocks[number - 1].is_free:
                    blocks[number - 1].size += blocks.pop(number).size

    @property
    def reserved_bytes(self) -> int:
        return sum(block.size for _, blocks in self.segments for block in blocks)


def play_plainly(log: Log) -> tuple[int, int]:
    """The same order of events, by the plain allocator: what is reserved, and the most that is
    allocated in the phases that are measured.
    """
    allocator = PlainAllocator()
    stretches = list(totals.find_stretches(log))
    first = next((begin for begin, phase in log.phases if phase != "build"), log.position)
    gone = {~event for event in log.events[:first] if event < 0}
    dying = {~event for event in log.events if event < 0}
    live: dict[int, list[Block]] = defaultdict(list)
    heirs = totals._find_heirs(log, stretches)
    first, second = totals._program(stretches, zeroes_late=log.zeroes_late)
    for run in (*first, *second):
        allocator.is_measured = run.moment >= 0
        allocator.note()
        events = log.events[run.begin : run.end]
        if run.kind in (totals._ZERO_GRAD, totals._RELEASE):
            is_zero_grad = run.kind == totals._ZERO_GRAD
            for index in events:
                is_gradient = log.categories[index] is Category.GRADIENT if index >= 0 else None
                if is_gradient is is_zero_grad and (is_zero_grad or index not in dying):
                    for block in [live[index].pop(0) for _ in live[index][: run.repeats]]:
                        allocator.free(block)
            continue
        for event in events * run.repeats:
            index = event if event >= 0 else ~event
            if index in gone or not log.requested[index]:
                continue
            if event >= 0:
                live[index].append(allocator.allocate(log.size(index), log.streams.get(index, 0)))
            elif live[index]:
                allocator.free(live[index].pop())
            elif live[heirs[index]]:
                allocator.free(live[heirs[index]].pop(-1 if run.kind == totals._BACKWARD else 0))
    return allocator.reserved_bytes, allocator.peak_bytes


def play_native(log: Log) -> tuple[int, int]:
    """The same in C."""
    found = count_totals(log)
    return found.reserved_bytes, found.peak.allocated_bytes


def reserve(*sizes: float) -> tuple[int, int]:
    """What a program comes to that asks for so many MiB, or, below 0, lets go of the first that it
    has of that size; of a step alone.
    """
    arena = Arena()
    arena.begin("build")
    arena.begin("forward")
    arena.begin("states")
    live: list[tuple[float, Storage]] = []
    for size in sizes:
        if size > 0:
            live.append((size, arena.take(int(size * MIB))))
        else:
            live.pop([block for block, _ in live].index(-size))
    arena.begin("optimizer")
    assert play_plainly(arena.log) == play_native(arena.log)
    return play_native(arena.log)


def test_small_requests_share_a_segment_of_2_mib() -> None:
    assert reserve(0.5, 0.5, 0.5, 0.5)[0] == 2 * MIB
    assert reserve(0.5, 0.5, 0.5, 0.5, 0.25)[0] == 4 * MIB


def test_requests_of_less_than_10_mib_share_a_segment_of_20_mib() -> None:
    assert reserve(6, 6, 6) == (20 * MIB, 18 * MIB)


def test_a_larger_request_gets_a_segment_of_whole_2_mib() -> None:
    assert reserve(11.5) == (12 * MIB, 12 * MIB)


def test_a_rest_of_more_than_1_mib_is_split_off() -> None:
    assert reserve(20, -20, 19)[1] == 20 * MIB
    assert reserve(20, -20, 18.5, 1.5) == (20 * MIB, 20 * MIB)


def test_the_best_fit_is_taken() -> None:
    assert reserve(40, 20, 30, -40, -20, -30, 25, 40, 20)[0] == 90 * MIB


def test_free_neighbours_become_one() -> None:
    assert reserve(5, 5, 5, 5, -5, -5, -5, -5, 20)[0] == 20 * MIB


def test_what_was_on_one_stream_is_of_no_use_to_another() -> None:
    arena = Arena()
    arena.begin("build")
    arena.begin("forward")
    arena.begin("optimizer")
    for stream in (0, 1):
        storage = arena.take(30 * MIB)
        arena.log.streams[storage.index] = stream
        del storage
    assert play_native(arena.log) == play_plainly(arena.log) == (60 * MIB, 30 * MIB)


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 30), st.booleans()), max_size=80))
@settings(max_examples=80, deadline=None)
def test_the_native_play_is_the_plain_one(steps: list[tuple[int, int, bool]]) -> None:
    """A step asks for so many times 512 bytes, then lets go of one by its place, if there is one;
    some are repeated layers, whose deaths have to find an heir.
    """
    arena = Arena()
    arena.begin("build")
    live: list[Storage] = []
    for number, (size, place, is_repeated) in enumerate(steps):
        if number == len(steps) // 3:
            arena.begin("forward")
        with arena.section("layers", "forward", 1 + 2 * is_repeated):
            live.append(arena.take(size * 512))
            if place < len(live):
                live.pop(place)
    arena.begin("backward")
    while len(live) > 3:
        live.pop()
    arena.begin("optimizer")
    assert play_native(arena.log) == play_plainly(arena.log)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("gpt2", {}),
        ("gpt2", {"checkpointing": "full", "accumulation": 2}),
        ("resnet18", {"image": 64, "length": None}),
    ],
)
def test_a_training_program_is_replayed_as_the_plain_allocator_does(
    model: str, changes: dict[str, Any]
) -> None:
    recipe = Recipe(**{"batch": 1, "length": 128, **changes})
    log = play_training(find_model(model).config, recipe, Machine()).log
    assert play_native(log) == play_plainly(log)
    peak = count_totals(log).peak
    assert peak.requested_bytes <= peak.allocated_bytes <= count_totals(log).reserved_bytes


def test_what_the_loop_holds_goes_when_there_is_a_new_loss() -> None:
    arena = Arena()
    arena.begin("build")
    arena.begin("forward")
    loss = arena.take(30 * MIB)
    arena.begin("backward")
    storage = arena.take(30 * MIB)  # by the graph behind the loss
    arena.begin("optimizer")
    assert play_native(arena.log)[0] == 90 * MIB
    del loss, storage


def test_more_than_can_be_counted_is_refused_by_name() -> None:
    for size in (2**62, 2**70):
        arena = Arena()
        arena.begin("build")
        storages = [arena.take(size) for _ in range(3)]
        arena.begin("forward")
        with pytest.raises(SpecError, match="8 EiB"):
            count_totals(arena.log)
        del storages
