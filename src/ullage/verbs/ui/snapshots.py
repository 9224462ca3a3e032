"""Snapshot files that were chosen in the browser, and the pages that are made of them.

A file is written to a directory of this server alone as it comes in, and is deleted as soon as its
page is made; the pages live as long as the server.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ullage.ground.errors import SpecError
from ullage.verbs.diff.function import diff
from ullage.verbs.explain.function import explain_file
from ullage.verbs.ui.guard import TooLarge

LARGEST_BYTES: Final = 4 * 2**30
_MAX_WAITING: Final = 4
_MAX_PAGES: Final = 8


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its number, and where it is."""

    id: str
    path: Path


class Snapshots:
    """The uploaded files that have no page yet, and the pages, the oldest first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: dict[str, Path] = {}
        self._pages: dict[str, Page] = {}

    async def add(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """Stores an uploaded file; returns its number.

        Raises:
            TooLarge: it has more than LARGEST_BYTES; nothing of it is kept.
        """
        number = secrets.token_hex(8)
        folder = self._directory / number
        folder.mkdir()
        path = folder / _plain_name(name)
        size_bytes = 0
        try:
            with path.open("wb") as file:
                async for chunk in chunks:
                    size_bytes += len(chunk)
                    if size_bytes > LARGEST_BYTES:
                        raise TooLarge(
                            f"{name!r} has more than {LARGEST_BYTES >> 30} GiB; open it with "
                            "`ullage explain -o page.html`"
                        )
                    file.write(chunk)
        except BaseException:
            _remove(path)
            raise
        self._waiting[number] = path
        while len(self._waiting) > _MAX_WAITING:
            _remove(self._waiting.pop(next(iter(self._waiting))))
        return number

    def make_page(self, numbers: Sequence[str]) -> Page:
        """Makes the page of one file, or of two compared; removes the files.

        Raises:
            SpecError: they are not one or two files that wait.
            SnapshotError: one cannot be read, or tells of no device memory.
        """
        if not 1 <= len(numbers) <= 2 or len(set(numbers)) != len(numbers):
            raise SpecError(f"files: found {len(numbers)}, expected one or two different ones")
        if not set(numbers) <= set(self._waiting):
            raise SpecError("files: one is not there any more; choose it again")
        paths = [self._waiting.pop(number) for number in numbers]
        try:
            html = explain_file(paths[0]).html if len(paths) == 1 else diff(*paths).html
        finally:
            for path in paths:
                _remove(path)
        number = secrets.token_hex(8)
        page = Page(number, self._directory / f"{number}.html")
        page.path.write_text(html, encoding="utf-8")
        self._pages[number] = page
        while len(self._pages) > _MAX_PAGES:
            self._pages.pop(next(iter(self._pages))).path.unlink()
        return page

    def find_page(self, number: str) -> Path | None:
        """The file of a page."""
        page = self._pages.get(number)
        return page.path if page else None


def _plain_name(name: str) -> str:
    """The last part of a name, which is the title of the page."""
    base_name = PurePosixPath(name.replace("\\", "/").replace("\0", "")).name[-120:]
    return "snapshot" if base_name in {"", ".", ".."} else base_name


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.rmdir()
