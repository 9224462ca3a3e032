"""One rank of a distributed job, with the environment variables that torchrun sets for it.

Rank(5, world_size=64, local_world_size=8).variables()["LOCAL_RANK"]    # "5"
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.errors import SpecError

# The default number of ranks on one node: the GPUs of a usual server.
DEFAULT_LOCAL_WORLD_SIZE = 8
# The most devices that the phantom simulates in one process.
MAX_LOCAL_WORLD_SIZE = 64
# No job is larger by far; the ranks that are alike are counted one by one.
MAX_WORLD_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank, the number of ranks of the job, and the number of ranks on one node."""

    number: int
    world_size: int
    local_world_size: int

    def variables(self) -> dict[str, str]:
        """The variables that torchrun sets for this rank; nothing listens at the address."""
        node, local = divmod(self.number, self.local_world_size)
        num_nodes = self.world_size // self.local_world_size
        return {
            "RANK": str(self.number),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(node),
            "ROLE_RANK": str(self.number),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_WORLD_SIZE": str(num_nodes),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }


def check_num_gpus(number: int) -> int:
    """The number of devices of one machine; raises SpecError where none has this many."""
    if not 1 <= number <= MAX_LOCAL_WORLD_SIZE:
        raise SpecError(f"no machine has {number} GPUs; expected 1 to {MAX_LOCAL_WORLD_SIZE}")
    return number


def choose_ranks(
    numbers: tuple[int, ...], world_size: int, local_world_size: int | None = None
) -> tuple[Rank, ...]:
    """Chooses the ranks of a job to simulate.

    Args:
        numbers: the numbers of the ranks, each once.
        world_size: the number of ranks of the job.
        local_world_size: the number of ranks on one node; None means 8, or all of a smaller job.

    Raises:
        SpecError: there is no such rank, or the ranks do not fill whole nodes.
    """
    local = local_world_size
    if local is None:
        local = min(world_size, DEFAULT_LOCAL_WORLD_SIZE)
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise SpecError(
            f"world_size={world_size} is not a number of ranks; expected 1 to {MAX_WORLD_SIZE}"
        )
    if not 1 <= local <= MAX_LOCAL_WORLD_SIZE or world_size % local:
        raise SpecError(
            f"{world_size} ranks cannot be on nodes of {local}; give --local-world-size the number "
            f"of GPUs of a node, from 1 to {MAX_LOCAL_WORLD_SIZE}, that divides {world_size}"
        )
    for number in numbers:
        if not 0 <= number < world_size:
            raise SpecError(
                f"there is no rank {number} of {world_size}; ranks go from 0 to {world_size - 1}"
            )
        if numbers.count(number) > 1:
            raise SpecError(f"rank {number} was given twice; give each rank once")
    return tuple(Rank(number, world_size, local) for number in numbers)
