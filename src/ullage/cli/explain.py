"""`ullage explain`: explains a memory snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.main import ANSWER_IS_NO
from ullage.cli.options.command import command
from ullage.cli.output import OUTPUT, Output, check_plot_option
from ullage.cli.server_log import is_server_file, show_server
from ullage.errors import SpecError
from ullage.protocol.options.explain import ExplainOptions, WhatIfOptions
from ullage.protocol.options.option import ARGUMENT, OPTIONS

if TYPE_CHECKING:
    from ullage.api.explain import Explanation


@dataclass(frozen=True, slots=True)
class AskedOptions:
    """The options that ask a question of a file, or of none."""

    file: Path | None = ARGUMENT("", "[FILE]", default=None)
    what_if: bool = OPTIONS.switch("Replay the snapshot under other allocator settings.")
    rule: str | None = OPTIONS("Explain a rule, for example UL101, and exit.", "CODE")


@dataclass(frozen=True, slots=True)
class ExplainOutput(Output):
    """The outputs of an explanation."""

    export: Sequence[Path] = OUTPUT(
        "Also export for another tool: .pickle (memory_viz), .perfetto.json, .folded "
        "(flame graph), .csv, .json, .ullage (compact).",
        "FILE", default=(),
    )  # fmt: skip
    plot: Path | None = OUTPUT(
        "Draw what was recorded: memory, step times, retries, latencies (.svg, .png, .pdf).", "FILE"
    )


@command(says={"quiet": "Print only the verdict."})
def explain_command(
    options: ExplainOptions, replay: WhatIfOptions, asked: AskedOptions, output: ExplainOutput
) -> int:
    """Explain a memory snapshot: who owned the peak, what leaks, what to do about it; or a
    server's log.

    \b
    ullage explain snapshot.pickle --full
    ullage explain snapshot.pickle --try-remedies --python thin/bin/python
    ullage explain snapshot.pickle --what-if --gpu l4
    ullage explain snapshot.pickle --html page.html --export flame.folded
    ullage explain server.log
    ullage explain --rule UL111

    FILE was written by torch.cuda.memory._dump_snapshot(), `ullage run` or `ullage record`, or is
    the directory with the recordings of a job's ranks; or it is a server's start-up log (vLLM,
    SGLang) or a saved page of its /metrics.

    Exits with 0, 1 if the program ended because it ran out of memory or the server did not start, 2
    if the file cannot be read.
    """
    if asked.rule is not None:
        return _print_rule(asked.rule)
    file = asked.file
    if file is None:
        raise click.UsageError("missing FILE, a memory snapshot; or give --rule CODE")
    python = None if options.try_remedies else options.python
    needing = {"--gpu": replay.gpu, "--memory": replay.memory, "--python": python}
    unfit = {"--request": options.request, "--html": output.html, "--export": output.export or None,
             "--plot": output.plot, "--try-remedies": options.try_remedies or None,
             "--full": output.full or None}  # fmt: skip
    for name, value in (unfit if asked.what_if else needing).items():
        if value is not None:
            how = "does not go with" if asked.what_if else "is of use only with"
            raise click.UsageError(f"{name} {how} --what-if")
    from ullage.api.explain import explain_file
    from ullage.report.document.export import check_format
    from ullage.report.text.explain import explain_blocks

    output.check(("--plot", output.plot), *[("--export", path) for path in output.export])
    check_plot_option(output.plot)
    for path in output.export:
        check_format(path)
    if asked.what_if:
        return _show_what_if(replay, output)
    if is_server_file(file):
        return show_server(file, output, unfit=unfit)
    if file.is_dir():
        return _show_recording(file, output, unfit)
    result = explain_file.act(options)
    if result.has_record_alone:
        return _show_recording(file, output, unfit)

    # The answer to a request is among what is reserved.
    output = replace(output, full=output.full or options.request is not None)
    return output.give(result, explain_blocks(result.view), _write_files(result, output))


def _show_what_if(options: WhatIfOptions, output: Output) -> int:
    """Replays a snapshot and shows what came of it; the exit code is 1 where a GPU was chosen and
    no setting that may be used has memory for it all.
    """
    from ullage.api.what_if import what_if
    from ullage.report.text.what_if import what_if_blocks

    result = what_if.act(options)
    exit_code = 0 if result.report.has_room else ANSWER_IS_NO
    return output.give(result, what_if_blocks(result.report), exit_code=exit_code)


def _write_files(result: Explanation, output: ExplainOutput) -> list[Path]:
    files = [result.export(path, force=output.force) for path in output.export]
    if output.plot is not None:
        files.append(result.plot(output.plot, force=output.force))
    return files


def _show_recording(file: Path, output: ExplainOutput, unfit: Mapping[str, object]) -> int:
    """Explains a recording that has no trace, or those of a job's ranks."""
    from ullage.api.record import read_recording
    from ullage.cli.record import show_recorded

    if any(unfit[name] is not None for name in ("--request", "--html", "--export")):
        raise SpecError(
            f"--request, --html and --export need a trace, and {str(file)!r} has none; record with "
            "--mode full, and give one file"
        )
    return show_recorded(read_recording(file), output, output.plot)


def _print_rule(code: str) -> int:
    from ullage.answers.text import print_blocks
    from ullage.explain.rules.registry import find_rule
    from ullage.report.text.explain import rule_blocks

    print_blocks(rule_blocks(find_rule(code)))
    return 0
