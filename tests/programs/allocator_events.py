"""Makes requests to torch's own allocator, as ground/programs/allocator_replay.py of the package
does, and also tells the address that each took and what was reserved after it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "src" / "ullage" / "ground" / "programs" / "allocator_replay.py"
_spec = importlib.util.spec_from_file_location("allocator_replay", FILE)
assert _spec is not None and _spec.loader is not None
replayer: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(replayer)
result_of = replayer._result


class Player(replayer._Player):  # type: ignore[misc] # a module that is loaded by its path
    """Notes each operation."""

    def play(self, ops: list[int]) -> int | None:
        """One after the other."""
        self.addresses: list[int] = []
        self.reserved: list[int] = []
        for number, op in enumerate(ops):
            if super().play([op]) is not None:
                return number
            is_born = 0 <= op < len(self._pointers)
            self.addresses.append(self._pointers[op] if is_born else 0)
            self.reserved.append(self._torch.cuda.memory_reserved())
        return None


def noted_result(torch: Any, player: Player, stopped_at: int | None) -> dict[str, Any]:
    """With what was noted."""
    noted = {"addresses": player.addresses, "reserved": player.reserved}
    return {**result_of(torch, player, stopped_at), **noted}


replayer._Player, replayer._result = Player, noted_result
replayer.main(*sys.argv[1:3])
