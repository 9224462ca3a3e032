"""The paths of the libraries that ullage.ground.native.build makes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The phantom and a stub for each of NVIDIA's sonames must be in the same directory.
LIBRARY_DIR: Final = Path(__file__).parent / "lib"
PHANTOM: Final = LIBRARY_DIR / "libullage_phantom.so"
# Loaded by ullage itself: the reader of snapshots (log/csrc), the replay of estimates
# (players/eager/csrc).
READER: Final = LIBRARY_DIR / "libullage_reader.so"
REPLAY: Final = LIBRARY_DIR / "libullage_replay.so"
# NVML for other programs than the one on the phantom (players/phantom/nvml).
NVML: Final = LIBRARY_DIR / "libullage_nvml.so"
# Loaded into the user's process by `ullage record`: the allocator's events (players/inside/csrc).
EVENT_HOOK: Final = LIBRARY_DIR / "libullage_event_hook.so"
# Loaded into the user's process by `ullage.guard`: the reader of version counters (act/guard/csrc).
GUARD: Final = LIBRARY_DIR / "libullage_guard.so"
