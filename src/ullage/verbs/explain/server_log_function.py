"""Explains a server's start-up log or page of metrics, and compares two of them: what
`ullage explain` and `ullage diff` do with such files.

    server = ullage.explain_server("server.log")
    server.start.tokens, server.levers[0].change
    ullage.diff_servers("before.log", "after.log").causes[0].why
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.plain import As, Mark

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.servers.differences import StartCause, StartChange
    from ullage.explain.servers.levers import Lever
    from ullage.explain.servers.start import ServerStart


@dataclass(frozen=True, slots=True)
class ExplainedServer(VerbAnswer):
    """A server by what it printed.

    Attributes:
        path: of the file, as it was given.
        start: where the memory went, and why it failed if it did.
        levers: what would give the cache more tokens, the most first.
        has_model: the model's configuration was found on this machine, so the levers count it.
    """

    SCHEMA: ClassVar[str] = "ullage.server/1"

    path: Annotated[str, As("file")]
    start: Annotated[ServerStart, Mark.FLAT]
    levers: tuple[Lever, ...]
    has_model: Annotated[bool, Mark.NO_KEY]

    @property
    def exit_code(self) -> int:
        """1 where the server did not start, or stopped for want of memory; else 0."""
        return 0 if self.start.failure is None else 1

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.explain.server_log_text import server_blocks

        return server_blocks((self.start, self.levers))


@dataclass(frozen=True, slots=True)
class ServerDiff(VerbAnswer):
    """Two starts compared.

    Attributes:
        paths: of the files, as they were given.
        change: all that was found.
    """

    SCHEMA: ClassVar[str] = "ullage.server-diff/1"

    paths: Annotated[tuple[str, str], As("files")]
    change: Annotated[StartChange, Mark.FLAT]

    @property
    def causes(self) -> tuple[StartCause, ...]:
        """The causes that gave or took tokens, the most first."""
        return self.change.causes

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.explain.server_log_text import server_diff_blocks

        return server_diff_blocks(self.change)


def is_server_file(path: str | os.PathLike[str]) -> bool:
    """True if a file is a log of a server or a page of metrics; a snapshot of memory is none."""
    from ullage.explain.servers.reader import looks_like_server

    return looks_like_server(Path(path))


def explain_server(path: str | os.PathLike[str]) -> ExplainedServer:
    """Explains a start-up log of vLLM or SGLang, or a saved page of its metrics.

    Raises:
        SpecError: the file cannot be read, or is none of these.
    """
    from ullage.explain.servers.levers import find_levers
    from ullage.explain.servers.reader import read_server
    from ullage.facts.families.find import find_here

    start = read_server(Path(path))
    model = None if start.model is None else find_here(start.model)
    levers = find_levers(start, None if model is None else model.config)
    return ExplainedServer(os.fspath(path), start, levers, model is not None)


def diff_servers(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> ServerDiff:
    """Says which option or version gave or took tokens of the cache between two starts.

    Raises:
        SpecError: a file cannot be read, or does not give the size of its cache.
    """
    from ullage.explain.servers.differences import compare_starts
    from ullage.explain.servers.reader import read_server

    change = compare_starts(read_server(Path(before)), read_server(Path(after)))
    return ServerDiff((os.fspath(before), os.fspath(after)), change)
