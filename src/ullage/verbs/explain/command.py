"""`ullage explain`: explains a memory snapshot, or removes private names from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import OPTIONS, SETTINGS
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import PLOTS, Output
from ullage.verbs.explain.options import ExplainOptions
from ullage.verbs.explain.server_log_command import is_server_file, show_server

_RULE = re.compile(r"UL\d+")
_ENDINGS = (".html", ".pickle", ".perfetto.json", ".folded", ".csv", ".ullage")


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """A copy of the snapshot that may be shared, in place of its explanation."""

    share: Path | None = OPTIONS("Write a copy without paths and names to this file.", "FILE")
    hide: Sequence[str] = OPTIONS(
        "With --share: other texts to remove, for example a project's name.", default=()
    )
    key: str | None = SETTINGS(
        "With --share: key for hashing directories, so that several files agree; default: random."
    )


@command(
    outputs=("output", "as_json", "full"),
    says={
        "output": "Also write .html, a page; .json, the document; .pickle (memory_viz), "
        ".perfetto.json, .folded (flame graph), .csv, .ullage (compact); of a recording .svg, .png "
        "or .pdf, a plot; repeatable."
    },
)
def explain_command(options: ExplainOptions, shared: ShareOptions, output: Output) -> int:
    """Explain a memory snapshot: who owned the peak, what leaks, what to do about it; or a
    server's log.

    \b
    ullage explain snapshot.pickle --full
    ullage explain snapshot.pickle --try-remedies --python thin/bin/python
    ullage explain snapshot.pickle -o page.html -o flame.folded
    ullage explain snapshot.pickle --share shared.pickle
    ullage explain server.log
    ullage explain UL111

    FILE was written by torch.cuda.memory._dump_snapshot(), `ullage run` or `ullage record`, or is
    the directory with the recordings of a job's ranks; or it is a server's start-up log (vLLM,
    SGLang) or a saved page of its /metrics; or the code of a rule.

    With --share paths become relative to their package, or their directories become hashes. Names
    of users and of this machine, addresses, environment variables in free text and command lines
    are removed. Sizes, times and names of functions and modules stay. PyTorch's viewer opens the
    result. Review it before you share it: no rule finds everything.

    Exits with 0, 1 if the program ended because it ran out of memory or the server did not start, 2
    if the file cannot be read.
    """
    file = Path(options.file)
    if not file.exists() and _RULE.fullmatch(file.name):
        return _print_rule(file.name)
    if options.python is not None and not options.try_remedies:
        raise click.UsageError("--python is of use only with --try-remedies")
    output.check(*_ENDINGS, *PLOTS)
    unfit = {
        "--request": options.request, "--try-remedies": options.try_remedies or None,
        "--full": output.full or None, "--share": shared.share,
    }  # fmt: skip
    if is_server_file(file):
        return show_server(file, output, unfit=unfit)
    if shared.share is not None:
        given: dict[str, object] = {
            **unfit, "-o": output.output, "--json": output.as_json,
        }  # fmt: skip
        return _write_shared(file, shared, given, force=output.force)
    if file.is_dir():
        return _show_recording(file, output, unfit)
    from ullage.verbs.explain.function import explain_file

    result = explain_file.act(options)
    if result.has_record_alone:
        return _show_recording(file, output, unfit)

    # The answer to a request is among what is reserved.
    output = replace(output, full=output.full or options.request is not None)
    return output.give(result)


def _write_shared(
    file: Path, shared: ShareOptions, given: dict[str, object], *, force: bool
) -> int:
    from ullage.verbs.explain.share_command import write_shared

    path = given.pop("--share")
    for flag, value in given.items():
        if value:
            raise SpecError(f"{flag} does not go with --share, which writes a copy alone")
    return write_shared(file, Path(str(path)), shared.hide, shared.key, force=force)


def _show_recording(file: Path, output: Output, unfit: Mapping[str, object]) -> int:
    """Explains a recording that has no trace, or those of a job's ranks."""
    from ullage.verbs.record.command import show_recorded
    from ullage.verbs.record.function import read_recording

    if unfit["--request"] is not None or unfit["--share"] is not None:
        raise SpecError(
            f"--request and --share need a trace, and {str(file)!r} has none; record with --mode "
            "full, and give one file"
        )
    output.check(*PLOTS)
    return show_recorded(read_recording(file), output)


def _print_rule(code: str) -> int:
    from ullage.answers.text import print_blocks
    from ullage.explain.rules.registry import find_rule
    from ullage.verbs.explain.text import rule_blocks

    print_blocks(rule_blocks(find_rule(code)))
    return 0
