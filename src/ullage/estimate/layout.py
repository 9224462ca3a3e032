"""How a job is spread over GPUs, and what of it one rank has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.errors import SpecError

__all__ = ["ALONE", "SHARDINGS", "Layout"]

# "ddp": every rank has all. "zero1": optimizer states are shared out (torch's
# ZeroRedundancyOptimizer). "zero2": parameters stay gathered from the forward to the backward pass,
# gradients and states are shared out (FSDP2, reshard_after_forward=False). "fsdp": parameters too.
SHARDINGS: Final = ("ddp", "zero1", "zero2", "fsdp")


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks, by what they divide among them. Their product is the number of GPUs.

    Attributes:
        data: replicas of the model, or ranks that shard it; each has its own samples.
        sharding: one of SHARDINGS; what the ranks of `data` share out.
        tensor: ranks that divide heads, the inner width of the MLP and the vocabulary.
        pipeline: stages.
        micro_batches: passes before a step, of which a stage has several in flight.
        schedule: "1f1b" or "gpipe".
        offload: parameters, gradients and states of "fsdp" stay in host memory.
        stage: of the pipeline, the one that is looked at; None: the one that needs most.
    """

    data: int = 1
    sharding: str = "ddp"
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    offload: bool = False
    stage: int | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for name in ("data", "tensor", "pipeline", "micro_batches"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}: found {getattr(self, name)}, expected at least 1")
        if self.sharding not in SHARDINGS:
            raise SpecError(f"sharding: found {self.sharding!r}, expected {', '.join(SHARDINGS)}")
        if self.schedule not in ("1f1b", "gpipe"):
            raise SpecError(f"schedule: found {self.schedule!r}, expected 1f1b or gpipe")
        if self.stage is not None and not 0 <= self.stage < self.pipeline:
            raise SpecError(f"stage: found {self.stage}, expected from 0 to {self.pipeline - 1}")
        if self.offload and self.sharding != "fsdp":
            raise SpecError(f"offload: found with sharding {self.sharding}, expected fsdp")

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.data * self.tensor * self.pipeline

    @property
    def num_shards(self) -> int:
        """Ranks that share out parameters."""
        return self.data if self.sharding in ("zero2", "fsdp") else 1

    @property
    def in_flight(self) -> int:
        """Micro-batches of which the stage holds the activations at once.

        GPipe: all of them. 1F1B: as many as there are stages from this one on (Narayanan et al.
        2021, PipeDream-Flush).
        """
        if self.schedule == "gpipe":
            return self.micro_batches
        return min(self.micro_batches, self.pipeline - self.place)

    @property
    def place(self) -> int:
        """The stage as a number; the first where none is said."""
        return self.stage or 0

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage that was said; else those that differ: the first, one between, the last. Of
        those between, the first holds most.
        """
        if self.stage is not None:
            return (self.stage,)
        return tuple(sorted({0, min(1, self.pipeline - 1), self.pipeline - 1}))


ALONE: Final = Layout()
