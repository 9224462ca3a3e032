"""How ranks can share a training under Accelerate or DeepSpeed, as a search tries it.

for sharding in SHARDINGS:
    sharding.name               # "ZeRO 3, optimizer on the host"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Engine(Enum):
    """The engine that does the sharing."""

    DDP = "DDP"
    FSDP2 = "FSDP2"
    DEEPSPEED = "ZeRO"


class OnHost(Enum):
    """The tensors in the host's memory."""

    NOTHING = ""
    OPTIMIZER = ", optimizer on the host"
    ALL = ", parameters and optimizer on the host"


@dataclass(frozen=True, slots=True)
class Sharding:
    """One way for the ranks to share a training.

    Attributes:
        engine: what does it.
        zero_stage: what each rank has a part of alone: 0 nothing, 1 optimizer states, 2 gradients
            too, 3 parameters too. FSDP2 of stage 2 gathers parameters once a step.
        on_host: what lies in the host's memory.
        is_checkpointed: whether each block keeps only its inputs, and runs again in backward.
        num_context_ranks: the ranks that share one batch, each with a part of all its sequences
            (context parallel); with 1 each rank has its own.
    """

    engine: Engine
    zero_stage: int
    on_host: OnHost = OnHost.NOTHING
    is_checkpointed: bool = False
    num_context_ranks: int = 1

    @property
    def name(self) -> str:
        """Its name, for people."""
        words = self.engine.value
        if self.engine is Engine.DEEPSPEED:
            words += f" {self.zero_stage}"
        elif self.engine is Engine.FSDP2 and self.zero_stage == 2:
            words += ", parameters gathered once a step"
        if self.num_context_ranks > 1:
            words += f", sequences of one batch split among {self.num_context_ranks} ranks"
        return words + self.on_host.value + ", checkpointing" * self.is_checkpointed

    @property
    def checkpointed(self) -> Sharding:
        """The same with activation checkpointing."""
        return replace(self, is_checkpointed=True)


# ZeRO 0 and 1 with the optimizer on the host are not among them: ZeRO 1 sends as much as ZeRO 0 and
# takes less, and so does ZeRO 2 beside ZeRO 1 where gradients go to the host in any case.
SHARDINGS = (
    Sharding(Engine.DDP, 0),
    Sharding(Engine.FSDP2, 2),
    Sharding(Engine.FSDP2, 3),
    Sharding(Engine.FSDP2, 3, OnHost.ALL),
    Sharding(Engine.DEEPSPEED, 1),
    Sharding(Engine.DEEPSPEED, 2),
    Sharding(Engine.DEEPSPEED, 3),
    Sharding(Engine.DEEPSPEED, 2, OnHost.OPTIMIZER),
    Sharding(Engine.DEEPSPEED, 3, OnHost.OPTIMIZER),
    Sharding(Engine.DEEPSPEED, 3, OnHost.ALL),
)


def splitting_sequences(num_ranks: int) -> Sharding:
    """FSDP2 over all ranks, which have one batch together, and of each sequence a part."""
    return Sharding(Engine.FSDP2, 3, num_context_ranks=num_ranks)
