"""The options of each verb: one record, from which its command line, its Python function and its
section of ullage.toml follow.
"""

from __future__ import annotations

from typing import Final

SECTIONS: Final = (
    "run", "estimate", "capacity", "serve", "smallest", "record", "explain", "what-if", "diff",
    "watch", "fit", "largest", "exec", "ui", "nvml",
)  # fmt: skip
"""The verbs whose options ullage.toml may hold, each in a section of its name."""
