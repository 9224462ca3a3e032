"""A small training with the faults of the courses, one at a time.

python train.py leak
"""

import gc
import os
import random
import signal
import sys

import torch
from publishing import Publisher
from torch import nn

MIB = 2**20


class Training:
    """A stack of linear layers with Adam."""

    def __init__(self, width: int = 8192, depth: int = 8) -> None:
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        self.width = width
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.publisher = Publisher()

    def train(self, rows: int = 4096) -> torch.Tensor:
        """A step; returns its output."""
        output = self.model(torch.empty(rows, self.width, device="cuda"))
        output.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return output.detach()

    def run(self, steps: int, rows: int = 4096, seconds: float = 2.0) -> None:
        """Steps as they should be."""
        for _ in range(steps):
            self.train(rows)
            self.publisher.step(seconds)


def block(mib: float) -> torch.Tensor:
    """Memory of a size."""
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def healthy() -> None:
    """A job like any other."""
    Training().run(300)


def long() -> None:
    """A longer one."""
    Training(width=4096).run(700)


def large_neighbour() -> None:
    """A job with room of its own, until another takes it."""
    training = Training(width=4096)
    rest = block(15.2 * 1024)
    training.run(250)
    del rest


def small_neighbour() -> None:
    """A job that comes to the GPU of another, and goes."""
    training = Training(width=4096)
    rest = block(0.95 * 1024)
    training.run(100)
    del rest


def day() -> None:
    """A day: training, a validation each hour that takes less, a checkpoint."""
    training = Training()
    for _ in range(24):
        training.run(110, seconds=30.0)
        training.run(10, rows=2048, seconds=24.0)
        training.publisher.idle(60.0)


def leak() -> None:
    """Outputs are kept in a list; after 200 of them somebody empties it."""
    training, kept = Training(), []
    training.run(100)
    for _ in range(200):
        kept.append(training.train()[:256].clone())
        training.publisher.step(2.0)
    kept.clear()
    training.run(120)


def spike() -> None:
    """One batch is 35 times as long as the others."""
    training = Training(width=4096)
    training.run(100, rows=2048)
    training.run(1, rows=72_000)
    torch.cuda.empty_cache()
    training.run(120, rows=2048)


def fragmentation() -> None:
    """Small tensors are kept between large ones that go: their segments cannot be used again."""
    training = Training(width=4096)
    training.run(60, rows=2048)
    large, small = [], []
    for _ in range(1200):
        large.append(block(9))
        small.append(block(1.5))
    training.run(5, rows=2048)
    large.clear()
    training.run(120, rows=2048)
    small.clear()
    torch.cuda.empty_cache()
    training.run(60, rows=2048)


def rank() -> None:
    """A rank; that with the number 2 gets half more to do for a time."""
    training = Training(width=4096)
    is_odd = training.publisher.rank == 2
    training.run(80)
    training.run(100, rows=9216 if is_odd else 4096, seconds=2.0)
    training.run(80)


def slow_rank() -> None:
    """A rank that waits for no other; that with the number 2 is half slower for a time."""
    training = Training(width=4096)
    is_odd = training.publisher.rank == 2
    training.run(80)
    training.run(67 if is_odd else 100, seconds=3.0 if is_odd else 2.0)
    training.run(80)


def notebook() -> None:
    """A training of a notebook; then nothing for an hour, and another."""
    training = Training()
    training.run(60)
    training.publisher.idle(3600.0)
    training.run(60)


def storm() -> None:
    """Batches of all sizes on a GPU that is nearly full: the allocator gives back what it has just
    taken. Then all are of one size.
    """
    training, choice = Training(), random.Random(0)
    training.run(60, rows=4096)
    for _ in range(120):
        training.run(1, rows=choice.randrange(14_000, 24_000, 64))
    training.run(150, rows=4096)


def forecast() -> None:
    """A replay buffer grows until somebody bounds it."""
    training, kept = Training(), []
    training.run(60)
    for _ in range(220):
        kept.append(block(36))
        training.run(1)
    kept.clear()
    training.run(120)


def out_of_memory() -> None:
    """A batch that is too large, once; the program goes on with a smaller one."""
    training = Training()
    training.run(60)
    try:
        training.train(rows=90_000)
    except torch.cuda.OutOfMemoryError:
        gc.collect()
        torch.cuda.empty_cache()
    training.run(240)


def killed() -> None:
    """Nearly everything is allocated until the process is killed."""
    training = Training(width=4096)
    training.run(60)
    rest = block(torch.cuda.mem_get_info()[0] / MIB - 100)
    training.run(60)
    os.kill(os.getpid(), signal.SIGKILL)
    del rest


def full_cache() -> None:
    """The cache holds nearly the whole GPU, of which the steps need half: as a healthy job is."""
    training = Training()
    training.run(5)
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    free -= torch.cuda.memory_allocated()
    rest = [block(512) for _ in range(int(free / MIB - 1400) // 512)]
    rest.clear()
    training.run(295)


def plateau() -> None:
    """A cache of batches fills within 25 steps, and stays."""
    training, kept = Training(), []
    for _ in range(25):
        kept.append(block(300))
        training.run(1)
    training.run(275)


def variable() -> None:
    """Batches of all lengths, on a GPU with room for them."""
    training, choice = Training(), random.Random(1)
    for _ in range(300):
        training.run(1, rows=choice.randrange(512, 8192, 64))


def validation() -> None:
    """After each twenty steps a validation, with empty_cache() before and after it."""
    training = Training()
    for _ in range(15):
        training.run(20, rows=12_288)
        torch.cuda.empty_cache()
        with torch.no_grad():
            training.model(torch.empty(16_384, training.width, device="cuda"))
        torch.cuda.empty_cache()


def scaler() -> None:
    """Float16 with a scaler: it skips at the start, as it should, then for a time half of all."""
    training = Training()
    skips = 0
    for step in range(360):
        is_skipped = step < 12 or (120 <= step < 220 and step % 2 == 0)
        skips += is_skipped
        training.train()
        training.publisher.step(2.0, skips=skips)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
