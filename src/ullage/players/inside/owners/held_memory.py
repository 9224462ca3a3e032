"""Which tensors on the GPU have a name now, by which names, and how to let each go.

table = find_held_memory(torch)
print(table)    # as the last line of a cell the table alone is enough
table.tensors[0].num_bytes, table.tensors[0].holders
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ullage.ground.protocol.holder_chains import remedy_for
from ullage.ground.units import format_bytes
from ullage.players.inside.owners import notebook
from ullage.players.inside.owners.chains import Search
from ullage.players.inside.owners.holders import MIN_BYTES, variable_roots

_MAX_NAMES = 6


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """The memory of a tensor, and of its views.

    Attributes:
        num_bytes: of its storage.
        text: such as "float32 (8192, 1024) on cuda:0", of one of them.
        holders: the chains by which it is held, six at most.
        remedies: for each of them, what lets it go.
    """

    num_bytes: int
    text: str
    holders: tuple[str, ...]
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class HeldMemory:
    """The tensors that have a name, the largest first; as text a table.

    Attributes:
        tensors: those that are shown.
        num_tensors, num_bytes: of all that were found.
        allocated_bytes: what the allocator has given out on all devices.
    """

    tensors: tuple[HeldTensor, ...]
    num_tensors: int
    num_bytes: int
    allocated_bytes: int

    def __repr__(self) -> str:
        """The table."""
        remedies = list(dict.fromkeys(text for row in self.tensors for text in row.remedies))
        lines = [("bytes", "tensor", "held through", "let go")]
        for row in self.tensors:
            for number, (holder, remedy) in enumerate(zip(row.holders, row.remedies, strict=True)):
                first = ("", "") if number else (format_bytes(row.num_bytes), row.text)
                lines.append((*first, holder, f"[{remedies.index(remedy) + 1}]"))
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        table = [
            f"{size:>{widths[0]}}  {text:<{widths[1]}}  {holder:<{widths[2]}}  {number}"
            for size, text, holder, number in lines
        ]
        notes = [f"[{number}] {text}" for number, text in enumerate(remedies, 1)]
        return "\n".join([*table, *notes, self._sum])

    @property
    def _sum(self) -> str:
        more = self.num_tensors - len(self.tensors)
        shares = f"{format_bytes(self.num_bytes)} of {format_bytes(self.allocated_bytes)}"
        return (
            f"{shares} allocated have a name that was found"
            + f", {more} more tensor{'s' * (more > 1)} with it" * (more > 0)
            + "; parameters, buffers, gradients and what autograd saved are not listed"
        )


def find_held_memory(torch: ModuleType, limit: int = 20) -> HeldMemory:
    """Looks for the names of all tensors of 64 KiB or more on the GPUs.

    limit: how many tensors are shown.
    """
    rows = sorted(_find_tensors(torch), key=lambda row: -row.num_bytes)
    cuda: Any = torch.cuda
    count = cuda.device_count() if cuda.is_initialized() else 0
    return HeldMemory(
        tensors=tuple(rows[: max(limit, 0)]),
        num_tensors=len(rows),
        num_bytes=sum(row.num_bytes for row in rows),
        allocated_bytes=sum(cuda.memory_allocated(index) for index in range(count)),
    )


def _find_tensors(torch: ModuleType) -> Iterator[HeldTensor]:
    search = Search(torch)
    texts: dict[tuple[int, int], tuple[int, str]] = {}
    chains: dict[tuple[int, int], dict[str, None]] = {}
    for roots in (variable_roots(), notebook.outputs(), notebook.last_errors()):
        for chain, tensor in search.tensors(roots):
            try:
                storage = tensor.untyped_storage()
                place, num_bytes = (tensor.get_device(), storage.data_ptr()), storage.nbytes()
            except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
                continue
            if place[1] and num_bytes >= MIN_BYTES:
                kind = str(tensor.dtype).removeprefix("torch.")
                text = f"{kind} {tuple(tensor.shape)} on cuda:{tensor.get_device()}"
                texts.setdefault(place, (num_bytes, text))
                chains.setdefault(place, {})[chain] = None
    for place, (num_bytes, text) in texts.items():
        names = tuple(chains[place])[:_MAX_NAMES]
        yield HeldTensor(num_bytes, text, names, tuple(remedy_for(name) for name in names))
