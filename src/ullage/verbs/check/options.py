"""The options of `ullage check`, and of `ullage.check` and `ullage.lock`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from ullage.ground.protocol.option import ARGUMENT, OPTIONS, File, Listener, Python
from ullage.ground.protocol.plain import Mark
from ullage.verbs.run.options import PYTHON

CONFIG = ("Configuration; default: ullage.toml in this directory or above.", "FILE")
NO_CACHE = "Run every scenario, even if its result is cached."


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Which scenarios are run, and how.

    Attributes:
        scenarios: names of scenarios or of cases, or patterns with *; none: all.
        pages: whether a page of each entry that changed is made.
        on_progress: called with a line, such as "3 of 8 runs", as runs end.
        on_failure: called with the last output of a program that failed.
    """

    scenarios: Sequence[str] = ARGUMENT("", "[SCENARIO]...", default=())
    config: File | None = OPTIONS(*CONFIG)
    python: Python | None = OPTIONS(*PYTHON)
    no_cache: bool = OPTIONS.switch(NO_CACHE)
    _: KW_ONLY
    pages: Annotated[bool, Mark.NO_KEY] = False
    on_progress: Listener = None
    on_failure: Listener = None
