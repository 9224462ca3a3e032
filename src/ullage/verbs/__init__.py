"""The verbs, a folder each: its options, command and Python function, and the views of its
answer.
"""

from __future__ import annotations

from typing import Final

SECTIONS: Final = (
    "run", "estimate", "capacity", "serve", "smallest", "record", "explain", "what-if", "diff",
    "watch", "fit", "largest", "exec", "ui", "nvml",
)  # fmt: skip
"""The verbs whose options ullage.toml may hold, each in a section of its name."""
