"""An error at every allocation of a guarded training: it ends as it does unfailed, or is refused.

The programs of tests/programs/guard raise torch.OutOfMemoryError in place of one operation of a
training, on the processor, compare what is left with what is left of the same training unfailed
(parameters, buffers, gradients, optimizer states, losses, counts and generators, bit for bit), and
do so for one operation after another. Here is which trainings there are, and how each may end.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.phantom.alone import printed_by
from tests.rotation import Table

BETWEEN = ("in between: equal", "in between: out of memory")
MANY_STEPS, MAX_GROWN_BYTES = 500, 8 << 20
# Between backward and the optimizer, where gradients of earlier micro-batches are sums already.
LOST = "refused: a value that was computed before the error is needed"


@dataclass(frozen=True, slots=True)
class Training:
    """A training that fails at its allocations, an error at a time.

    Attributes:
        program: of tests/programs/guard.
        before: its words before the share of the allocations.
        after: its words after it.
        num_errors: about how many make a share, by day.
        every: by night every so-many-th allocation fails.
        others: how an error may end but equal, by the first words.
        recovered: which fraction of the errors ends equal: at least (of a share half of it, as
            there are few), and at most.
    """

    program: str
    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    num_errors: int = 12
    every: int = 1
    others: tuple[str, ...] = ()
    recovered: tuple[float, float] = (1.0, 1.0)

    def __str__(self) -> str:
        """As the name of a test."""
        words = (self.program.removesuffix(".py"), *self.before, *self.after)
        return " ".join(words)

    def words(self, share: str) -> list[str]:
        """The program and its words."""
        return [f"guard/{self.program}", *self.before, share, *self.after]


# Neighbours differ in much.
MODELS = (
    "cnn", "gpt2 accumulated", "llama", "unet", "cnn for loop", "vit", "lora accumulated", "moe",
    "cnn fused", "gpt2 for loop", "llama accumulated", "cnn reentrant", "gpt2", "vit accumulated",
    "lora", "gpt2 reentrant", "cnn not reentrant", "gpt2 not reentrant",
)  # fmt: skip
STEPS = tuple(Training("sweep.py", (case, step)) for step in "12" for case in MODELS)
OPERATIONS = tuple(
    Training("sweep.py", (case, "1"), ("all",), every=3, others=("refused: ",), recovered=(0.5, 1))
    for case in MODELS
)


def of_kind(
    name: str, *others: str, recovered: tuple[float, float] = (1.0, 1.0), num_errors: int = 12
) -> Training:
    """A training of kinds.py."""
    return Training(
        "sweep.py", (name, "-"), num_errors=num_errors, others=others, recovered=recovered
    )


OPTIMIZERS = (
    "Adafactor loop", "SGD lists", "AdamW loop", "Rprop lists", "NAdam loop", "Muon loop",
    "RAdam lists", "Adamax loop", "ASGD lists", "RMSprop loop", "Adam lists", "Adagrad loop",
    "Adadelta lists", "SGD loop", "Adafactor lists", "AdamW lists", "Rprop loop", "NAdam lists",
    "RAdam loop", "Adamax lists", "ASGD loop", "RMSprop lists", "Adam loop", "Adagrad lists",
    "Adadelta loop",
)  # fmt: skip
# The fraction of errors that is recovered where others are refused: most operations of Adafactor
# need a value that was computed before.
RECOVERED = {"Adafactor": 0.05}
IN_OPTIMIZERS = tuple(
    of_kind(f"optimizer {name}", num_errors=40)
    if name.startswith("SGD")
    else of_kind(
        f"optimizer {name}",
        "refused: a value",
        recovered=(RECOVERED.get(name.split()[0], 0.2), 1),
        num_errors=40,
    )
    for name in OPTIMIZERS
)
KINDS = (
    of_kind("average plain 0"),
    of_kind("two calls of one backward"),
    of_kind("accumulated, twice", num_errors=9),
    of_kind("in parts"),
    of_kind("errors of a library"),
    of_kind("average moving 1"),
    of_kind("outputs of all kinds"),
    of_kind("request"),
    of_kind("shards foreach", num_errors=100),
    of_kind("fused SGD, twice", "refused: there is no memory to look at how far the optimizer",
            recovered=(0.2, 1), num_errors=40),
    of_kind("a graph that is kept"),
    of_kind("average plain 1"),
    # These errors are not about memory.
    of_kind("mistakes", "the script's own: CUDA error: device-side", recovered=(0, 0)),
    of_kind("shards fused", num_errors=100),
    of_kind("an evaluation between"),
    of_kind("average moving 0"),
    of_kind("gradients of some parameters"),
)  # fmt: skip


# In between, where the trainer clips and counts, an error is its own.
TRAINERS = tuple(
    Training("trainers.py", (name,), (), 8, others=BETWEEN, recovered=(0.6, 1))
    for name in ("transformers", "lightning")
)


def of_ranks(words: str, where: str = "one", every: int = 1, **more: Any) -> Training:
    """A training of ranks.py: "WRAPPER, SIZE, CASE, STEP"."""
    return Training("ranks.py", tuple(words.split(", ")), (where,), 6, every, **more)


DDP = (
    of_ranks("ddp, 2, gpt2, 2", "backward"),
    of_ranks("ddp, 2, cnn, 2", "both"),
    of_ranks("ddp, 2, gpt2 accumulated, 2", others=(LOST,), recovered=(0.5, 1)),
    of_ranks("ddp views, 2, gpt2, 1"),
    of_ranks("ddp, 2, vit, 1"),
    of_ranks("ddp whole, 2, gpt2 accumulated, 1"),
    of_ranks("ddp, 2, llama, 2"),
    of_ranks("ddp views, 2, gpt2 accumulated, 2", "backward", every=10),
    of_ranks("ddp, 2, cnn, 1"),
    of_ranks("ddp unused, 2, gpt2, 1"),
    of_ranks("ddp, 2, gpt2, 2"),
    of_ranks("ddp, 2, vit, 2"),
    of_ranks("ddp, 2, gpt2, 1"),
    of_ranks("ddp views, 2, gpt2, 2"),
    of_ranks("ddp, 2, llama, 1"),
    of_ranks("ddp unused, 2, gpt2, 2"),
    of_ranks("ddp whole, 2, gpt2 accumulated, 2"),
    of_ranks("ddp, 2, cnn, 2"),
)
# These take longer: several collectives in a step, and four ranks.
SHARDED = (
    of_ranks("fsdp2, 2, gpt2, 2", "optimizer"),
    of_ranks("fsdp2, 4, gpt2, 2", "backward"),
    of_ranks("tp, 2, gpt2, 2", "optimizer", every=4),
    of_ranks("fsdp2, 2, gpt2 accumulated, 2", "backward", every=10),
    of_ranks("fsdp2, 2, cnn, 1", "optimizer"),
    of_ranks("tp, 2, gpt2, 2", every=8),
    of_ranks("fsdp2, 2, gpt2 for loop, 2", "optimizer", every=2),
    of_ranks("fsdp2, 4, llama, 2"),
    of_ranks("fsdp2 unsynced, 2, gpt2 accumulated, 2", "backward", every=10),
    of_ranks("ddp, 4, gpt2, 2", every=3),
    of_ranks("tp, 2, gpt2 fused, 2", "optimizer", every=2),
    of_ranks("fsdp2, 2, gpt2, 1", "optimizer"),
    of_ranks("tp fsdp2, 4, gpt2, 2", every=12),
    of_ranks("fsdp2, 2, llama, 1", "optimizer"),
    of_ranks("fsdp2, 2, cnn for loop, 1", "optimizer"),
    of_ranks("fsdp2, 4, gpt2, 2"),
    of_ranks("tp, 2, gpt2, 1", every=3),
    of_ranks("fsdp2, 2, gpt2 for loop, 1", "optimizer", every=2),
)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A training of repeated.py: of every so many steps one has an error at a random allocation.

    Attributes:
        name: a case, or a case and a change of it.
        num_steps, every: by night.
    """

    name: str
    num_steps: int = 100
    every: int = 1

    def __str__(self) -> str:
        """As the name of a test."""
        return f"{self.name} {self.num_steps}"


REPEATED = (
    *(
        Repeated(f"{model}+{change}")
        for change in ("checkpointing", "autocast", "compile", "accumulation", "ddp")
        for model in ("gpt2", "cnn", "vit", "llama")
    ),
    *(Repeated(model, 500, 3) for model in ("cnn", "gpt2", "vit", "llama accumulated")),
)

IN_STEPS = Table("errors in a guarded step", STEPS, 2, 5)
AT_OPERATIONS = Table("errors at any operation of a guarded step", OPERATIONS, 1, 1)
OF_OPTIMIZERS = Table("errors in the step of an optimizer", IN_OPTIMIZERS, 1, 3)
OF_KINDS = Table("errors in trainings of other kinds", KINDS, 2, 7)
IN_TRAINERS = Table("errors in the guarded steps of trainers", TRAINERS, 0, 1)
ON_RANKS = Table("errors on one of several ranks", DDP, 1, 3)
ON_SHARDS = Table("errors on one of several ranks with shards", SHARDED, 0, 4)
SWEPT = (
    IN_STEPS, AT_OPERATIONS, OF_OPTIMIZERS, OF_KINDS, IN_TRAINERS, ON_RANKS, ON_SHARDS,
)  # fmt: skip
IN_EVERY_OTHER_STEP = Table("errors in every other step", REPEATED, 0, 4)
TABLES = (*SWEPT, IN_EVERY_OTHER_STEP)


def check_share(python: Path, training: Training, visit: int) -> None:
    """Fails a training at a share of its allocations: by day."""
    least = training.recovered[0]
    check(python, training, f"{visit}:{training.num_errors}", least / 2 if least < 1 else least)


def check_all(python: Path, training: Training) -> None:
    """Fails a training at all its allocations, or at as many as a night has time for."""
    check(python, training, str(training.every), training.recovered[0])


def check(python: Path, training: Training, share: str, least: float) -> None:
    """Each error ended equal, or as it may end, on every rank; and of all a fraction equal."""
    for ends in run(python, training, share):
        count = sum(ends.values())
        assert count, f"no allocation failed in {training} {share}: is it counted as guarded?"
        wrong = [end for end in ends if not end.startswith(("equal", *training.others))]
        most = training.recovered[1]
        if wrong or not least <= ends["equal"] / count <= most:
            found = "; ".join(f"{number} x {end}" for end, number in ends.most_common())
            words = shlex.join(training.words(share))
            raise AssertionError(
                f"of {count} errors {ends['equal']} ended equal, where {least:.0%} to {most:.0%} "
                f"are expected, and the others as {training.others or 'none'}: {found}. Run "
                f"tests/programs/{words} to see where they came"
            )


def run(python: Path, training: Training, share: str) -> list[Counter[str]]:
    """How the trainings ended, counted, on each rank."""
    document = printed_by(python, *training.words(share))
    ranks = document.get("ranks", [document])
    return [Counter(flatten(rank["results"])) for rank in ranks]


def flatten(results: dict[str, Any]) -> dict[str, int]:
    """Ends and their number, where those of what is guarded may be apart from the script's own."""
    between = {f"in between: {end}": number for end, number in results.get("script", {}).items()}
    return results.get("guarded", results) | between


def check_repeated(python: Path, name: str, num_steps: int, every: int) -> None:
    """Every error was recovered, and the training is the same as without."""
    document = printed_by(python, "guard/repeated.py", name, str(num_steps), str(every))
    assert document["lost"] == []
    assert document["recoveries"] == document["errors"] == num_steps // every
    assert document["equal_losses"] == document["steps"] == num_steps
    assert document["different_state"] == []
    with_errors, without = document["graphs"]
    assert with_errors == without, "graphs were compiled again after errors"
    if num_steps >= MANY_STEPS:
        middle, end = document["resident"]
        assert end - middle < MAX_GROWN_BYTES, "the process grows with its errors"
