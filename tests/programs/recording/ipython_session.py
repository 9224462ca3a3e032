"""IPython's own shell with tensors that are none: what it holds, and what the remedies let go.

Each remedy of the table is run as a cell, as a user would; the last line is JSON.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import weakref
from types import SimpleNamespace
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from ullage.players.inside.owners.held_memory import find_held_memory
from ullage.players.inside.owners.notebook import CellHook

MIB = 1 << 20


class Storage:
    """Of some bytes, at an address of its own."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def data_ptr(self) -> int:
        return id(self)

    def nbytes(self) -> int:
        return self.num_bytes


class Tensor:
    """What the search asks of a tensor."""

    is_cuda, dtype, shape = True, "torch.uint8", (1,)

    def __init__(self, num_mib: int) -> None:
        self.storage = Storage(num_mib * MIB)

    def untyped_storage(self) -> Storage:
        return self.storage

    def get_device(self) -> int:
        return 0


class Parameter(Tensor):
    """Is claimed by name, not searched for."""


class Module:
    """Has no attributes of its own."""


TORCH: Any = SimpleNamespace(
    Tensor=Tensor,
    nn=SimpleNamespace(Parameter=Parameter, Module=Module),
    cuda=SimpleNamespace(
        device_count=lambda: 1, is_initialized=lambda: True, memory_allocated=lambda _: 64 * MIB
    ),
)


def names(shell: InteractiveShell) -> dict[int, list[str]]:
    """The chains of each size in MiB."""
    del shell
    table = find_held_memory(TORCH)
    return {row.num_bytes // MIB: list(row.holders) for row in table.tensors}


def run(shell: InteractiveShell, cell: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell(cell, store_history=True)


def apply_remedies(shell: InteractiveShell, references: list[weakref.ref[Tensor]]) -> list[str]:
    """Runs remedies until no tensor is found; those that were run."""
    remedies = []
    for _ in range(8):
        rows = find_held_memory(TORCH).tensors
        if not rows:
            break
        remedy = rows[0].remedies[0]
        remedies.append(remedy)
        fails = re.search(r"such as (\S+?):", remedy)
        text = fails[1] if fails else remedy.replace(", and then ", "\n")
        run(shell, text if fails or re.match(r"del |%xdel ", remedy) else "0")
        del rows
    gc.collect()
    return [*remedies, f"{sum(each() is not None for each in references)} left"]


def hook(shell: InteractiveShell) -> list[int]:
    """Cells that were seen before, while and after it was there; callbacks that are left."""
    cells: list[int] = []
    callbacks = list(shell.events.callbacks["post_run_cell"])
    watch = CellHook(lambda: cells.append(1))
    counts = []
    for change in (lambda: None, watch.install, watch.remove, watch.remove):
        change()
        run(shell, "0")
        counts.append(len(cells))
    return [*counts, int(shell.events.callbacks["post_run_cell"] == callbacks)]


def main() -> None:
    shell = InteractiveShell.instance()
    shell.user_ns["Tensor"] = Tensor
    document: dict[str, Any] = {"hook": hook(shell)}
    run(shell, "x = Tensor(1)")
    run(shell, "Tensor(2)")
    run(shell, "[x, Tensor(3)]")
    run(shell, "def train():\n    y = Tensor(4)\n    raise ValueError(y.shape)\n")
    run(shell, "train()")
    run(shell, "Tensor(6);")
    references = [weakref.ref(each) for each in gc.get_objects() if isinstance(each, Tensor)]
    document["names"] = names(shell)
    document["cells"] = shell.execution_count
    document["remedies"] = apply_remedies(shell, references)
    run(shell, "Tensor(2)")
    run(shell, f"del Out[{shell.execution_count - 1}], _{shell.execution_count - 1}")
    document["after_del"] = names(shell)
    references = [weakref.ref(each) for each in gc.get_objects() if isinstance(each, Tensor)]
    document["after_del_remedies"] = apply_remedies(shell, references)
    print(json.dumps(document))


main()
