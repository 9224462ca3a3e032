"""How a job is spread over GPUs, and which part of it one rank has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from ullage.ground.errors import SpecError
from ullage.verbs.estimate.options import Buckets, Sharding

BUCKETS: Final = get_args(Buckets)

# "ddp": every rank has all. "zero1": optimizer states are shared out (torch's
# ZeroRedundancyOptimizer). "zero2": parameters stay gathered from the forward to the backward pass,
# gradients and states are shared out (FSDP2, reshard_after_forward=False). "fsdp": parameters too.
SHARDINGS: Final = get_args(Sharding)


class Ring(NamedTuple):
    """The ranks that share a sequence, and this rank's number.

    The queries see the first half of the keys and values of earlier ranks; the second half of the
    queries sees all keys and values of later ranks.
    """

    ranks: int
    rank: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of ranks for each kind of parallelism; their product is the number of GPUs.

    Attributes:
        data: replicas of the model, or ranks that shard it; each has its own samples.
        sharding: one of SHARDINGS; what the ranks of `data` share out.
        tensor: ranks that divide heads, the inner width of the MLP and the vocabulary.
        sequence: the ranks of a tensor group also divide the sequence in norms and residuals.
        context: ranks that each have a part of the sequence, and gather keys and values; they
            share out parameters as the ranks of `data` do.
        expert: how many of the ranks of `data` divide the experts; other parameters are not
            affected.
        pipeline: stages.
        micro_batches: passes before a step, of which a stage has several in flight.
        schedule: "1f1b" or "gpipe".
        offload: parameters, gradients and states of "fsdp" stay in host memory.
        nvme: the shards go on to disks, as with DeepSpeed's ZeRO-Infinity.
        stage: the stage of the pipeline to estimate; None: the one that needs most.
        buckets: where DDP sums gradients: "copies" beside them; "views": they lie in the buckets
            (gradient_as_bucket_view); "none": they are summed where they are.
    """

    data: int = 1
    sharding: str = "ddp"
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    offload: bool = False
    nvme: bool = False
    stage: int | None = None
    buckets: str = "copies"

    def __post_init__(self) -> None:
        """Refuses layouts that are not possible."""
        for name in ("data", "tensor", "context", "expert", "pipeline", "micro_batches"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}: found {getattr(self, name)}, expected at least 1")
        if self.sharding not in SHARDINGS:
            raise SpecError(f"sharding: found {self.sharding!r}, expected {', '.join(SHARDINGS)}")
        if self.buckets not in BUCKETS:
            raise SpecError(f"buckets: found {self.buckets!r}, expected {', '.join(BUCKETS)}")
        if self.schedule not in ("1f1b", "gpipe"):
            raise SpecError(f"schedule: found {self.schedule!r}, expected 1f1b or gpipe")
        if self.stage is not None and not 0 <= self.stage < self.pipeline:
            raise SpecError(f"stage: found {self.stage}, expected from 0 to {self.pipeline - 1}")
        if self.expert > 1:
            self._check_experts()
        if self.sequence and self.tensor == 1:
            raise SpecError(
                "sequence: found with tensor 1, expected at least 2 ranks that divide it"
            )
        if self.offload and self.sharding != "fsdp":
            raise SpecError(f"offload: found with sharding {self.sharding}, expected fsdp")
        if self.nvme and not self.offload:
            raise SpecError("nvme: found without offload, expected both")

    def _check_experts(self) -> None:
        if self.data % self.expert:
            raise SpecError(
                f"expert: found {self.expert}, expected a divisor of data {self.data}, whose ranks "
                f"divide the experts"
            )
        if self.sharding not in ("zero2", "fsdp"):
            raise SpecError(
                f"expert: found with sharding {self.sharding}, expected zero2 or fsdp, which keep "
                f"the experts apart"
            )
        if self.tensor > 1:
            raise SpecError(f"expert: found with tensor {self.tensor}, expected tensor 1")

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def num_replicas(self) -> int:
        """Ranks whose gradients are summed: of other samples, or of other parts of a sequence."""
        return self.data * self.context

    @property
    def num_expert_copies(self) -> int:
        """Ranks that hold the same experts, and share out their parameters."""
        return self.num_replicas // self.expert

    @property
    def num_shards(self) -> int:
        """Ranks that share out parameters."""
        return self.num_replicas if self.sharding in ("zero2", "fsdp") else 1

    @property
    def ring(self) -> Ring | None:
        """The rank of context parallelism that needs most; None without context parallelism.

        It is the last but one: keys and values come from both sides, and the last step copies.
        """
        return Ring(self.context, max(self.context - 2, 0)) if self.context > 1 else None

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations the stage holds at the same time.

        GPipe: all of them. 1F1B: as many as there are stages from this one on (Narayanan et al.
        2021, PipeDream-Flush).
        """
        if self.schedule == "gpipe":
            return self.micro_batches
        return min(self.micro_batches, self.pipeline - self.place)

    @property
    def place(self) -> int:
        """The stage's number; the first stage's where none is given."""
        return self.stage or 0

    @property
    def stages(self) -> tuple[int, ...]:
        """The given stage; otherwise those that differ: the first, the second and the last.

        Of the stages between the first and the last, the second holds most.
        """
        if self.stage is not None:
            return (self.stage,)
        return tuple(sorted({0, min(1, self.pipeline - 1), self.pipeline - 1}))


ALONE: Final = Layout()
