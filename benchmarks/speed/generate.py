"""Makes a memory snapshot as long as one likes: a training loop's allocations, put through the
allocator's own rules, so that the file agrees with itself.

    python -m benchmarks.speed.generate big.pickle --events 1000000

The same arguments give the same bytes.
"""

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from benchmarks.speed.allocator import MIB, SNAPSHOT, Allocator, Block
from benchmarks.speed.snapshot_pickle import Frame, SnapshotWriter

_SHARED_FRAMES = 12
# What a program does next: (bytes to allocate, stack, name of the block); the name alone of a block
# to free; None, the end of a step.
_Move: TypeAlias = tuple[int, int, int] | int | None


def training(num_stacks: int, choose: random.Random) -> Iterator[_Move]:
    """The allocations of a training loop without end.

    Its batches differ in length, as those of real data do, which is what leaves holes.
    """
    num_layers, num_sites = 32, 24
    names = itertools.count()
    sizes = [choose.choice((3_000, 65_536, 800_000, 2 * MIB, 6 * MIB)) for _ in range(num_sites)]
    site = itertools.cycle(range(num_stacks)).__next__
    parameters = [(next(names), choose.choice((4_096, 3 * MIB, 12 * MIB))) for _ in range(256)]
    for name, size in parameters:
        yield size, site(), name
    states = [(next(names), size) for _, size in parameters for _ in range(2)]
    gradients: list[int] = []
    for step in itertools.count():
        first_site = 256 + 61 * step  # other batches take other ways through the model
        length = choose.choice((16, 20, 24, 28, 32))
        kept: list[tuple[int, int, int]] = []
        for number in range(num_layers * num_sites):
            size = sizes[number % num_sites] * length // 16 + choose.randrange(0, 300)
            name, stack = next(names), (first_site + number) % num_stacks
            yield size, stack, name
            if number % 3 == 1:
                yield name
            else:
                kept.append((name, size, stack))
        for number, (name, size, stack) in enumerate(reversed(kept)):
            scratch = next(names)
            yield size, (stack + num_layers * num_sites) % num_stacks, scratch
            yield name
            yield scratch
            if number % 2 == 0 and len(gradients) < len(parameters):
                gradients.append(next(names))
                yield parameters[-len(gradients)][1], (stack + 7) % num_stacks, gradients[-1]
        if step == 0:
            for name, size in states:
                yield size, site(), name
        yield from gradients
        gradients = []
        yield None


def simulate(num_events: int, num_stacks: int, seed: int) -> Allocator:
    """An allocator after so many events."""
    choose, allocator = random.Random(seed), Allocator()
    live: dict[int, Block] = {}
    trace, num_steps = allocator.trace, 0
    for move in training(num_stacks, choose):
        if len(trace.action) > num_events - 3:  # an operation is two events at most
            break
        if move is None:
            num_steps += 1
            room = num_events - len(trace.action) - 3
            if num_steps % 20 == 0 and room > len(allocator.segment_sizes):
                allocator.release()
        elif isinstance(move, int):
            allocator.free(live.pop(move))
        else:
            size, stack, name = move
            live[name] = allocator.allocate(size, stack)
    while len(trace.action) < num_events:
        trace.note(SNAPSHOT, 0, 0, -1)
    return allocator


def make_stacks(num_stacks: int, depth: int) -> list[list[Frame]]:
    """Stacks that share their outer frames, innermost first."""
    outer = [
        Frame(f"run_{level}", f"/opt/project/train_{level % 4}.py", 100 + level)
        for level in range(min(_SHARED_FRAMES, depth))
    ]
    own = depth - len(outer)
    return [
        [*(_own_frame(number, level) for level in range(own)), *outer]
        for number in range(num_stacks)
    ]


def _own_frame(stack: int, level: int) -> Frame:
    if level < 8:
        module = ("functional", "modules/linear", "modules/module", "modules/activation")[level % 4]
        return Frame(f"call_{stack % 61}", f"/opt/env/torch/nn/{module}.py", 50 + stack % 61)
    return Frame(
        f"forward_{stack % 97}_{level}", f"/opt/project/model/layer_{level}.py", 10 + stack
    )


def generate_snapshot(
    path: Path, num_events: int, *, num_stacks: int = 2000, depth: int = 40, seed: int = 0
) -> None:
    """Writes a snapshot of one device, about 0.22 kB an event at 40 frames a stack.

    Args:
        path: where to; what is there is overwritten.
        num_events: of the trace; at least 3.
        num_stacks: how many different stacks the allocations have.
        depth: frames in each.
        seed: of the made-up sizes.
    """
    allocator = simulate(num_events, num_stacks, seed)
    with path.open("wb") as file:
        SnapshotWriter(file, make_stacks(num_stacks, depth)).write(allocator)


def main() -> None:
    """Reads the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--stacks", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=40)
    arguments = parser.parse_args()
    generate_snapshot(
        arguments.path, arguments.events, num_stacks=arguments.stacks, depth=arguments.depth
    )


if __name__ == "__main__":
    main()
