"""The answer of a verb: a record whose document and views are made here, once for all verbs.

@dataclass(frozen=True, slots=True)
class Largest(VerbAnswer):
    report: Annotated[LargestReport, Mark.FLAT]

    def blocks(self, *, full: bool = False) -> Blocks: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.ground.protocol.plain import document_of

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks


class VerbAnswer:
    """The answer of a verb; a subclass has its fields, and the blocks of its report."""

    __slots__ = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return 0

    @property
    def document(self) -> dict[str, Any]:
        """The document of `--json`; its key `schema` names its form."""
        return document_of(self)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report; a full one may leave out what a short one points to."""
        raise NotImplementedError

    def text(self, width: int = 80, *, full: bool = False) -> str:
        """The report for people, without colour: in short, or the whole of it."""
        from ullage.answers.text import render

        return render(self.blocks(full=full), width, full=full)


class PageAnswer(VerbAnswer):
    """One whose page is its report."""

    __slots__ = ()

    @property
    def subject(self) -> str:
        """The title of the page: a model, traffic, or the words of a program."""
        raise NotImplementedError

    @property
    def html(self) -> str:
        """One self-contained page; the document is in it."""
        from ullage.answers.html import render_page

        return render_page(self.subject, self.blocks(), self.document)
