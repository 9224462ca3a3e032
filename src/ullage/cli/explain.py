"""`ullage explain`: explains a memory snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.options import flags
from ullage.cli.output import (
    FILE,
    UNWRITABLE,
    Output,
    check_files,
    check_plot_option,
)
from ullage.cli.server_log import is_server_file, show_server
from ullage.cli.what_if import check_options, show_what_if
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.api.explain import Explanation


@click.command("explain")
@click.argument("file", type=FILE, required=False)
@click.option(
    "--request", metavar="SIZE", help="Report whether a request of this size would find room."
)
@click.option("--what-if", is_flag=True, help="Replay the snapshot under other allocator settings.")
@click.option("--gpu", metavar="NAME", help="With --what-if: GPU to replay on (see `ullage gpus`).")
@click.option("--memory", metavar="SIZE", help="With --what-if: its total memory.")
@click.option(
    "--try-remedies", is_flag=True, help="If memory ran out: replay with each finding's remedy."
)
@click.option("--python", metavar="PATH", help="Interpreter whose torch does the replay.")
@click.option("--rule", metavar="CODE", help="Explain a rule, for example UL101, and exit.")
@flags.document_output
@flags.html
@click.option(
    "--export",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Also export for another tool: .pickle (memory_viz), .perfetto.json, .folded "
    "(flame graph), .csv, .json, .ullage (compact).",
)
@flags.plot_recorded
@flags.as_json
@flags.full
@flags.force
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def explain_command(
    file: Path | None,
    *,
    request: str | None,
    what_if: bool,
    try_remedies: bool,
    gpu: str | None,
    memory: str | None,
    python: str | None,
    rule: str | None,
    output: Path | None,
    html: Path | None,
    export: tuple[Path, ...],
    plot: Path | None,
    as_json: bool,
    full: bool,
    force: bool,
    quiet: bool,
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
    if rule is not None:
        return _print_rule(rule)
    if file is None:
        raise click.UsageError("missing FILE, a memory snapshot; or give --rule CODE")
    needing = {"--gpu": gpu, "--memory": memory, "--python": None if try_remedies else python}
    unfit = {"--request": request, "--html": html, "--export": export or None, "--plot": plot,
             "--try-remedies": try_remedies or None, "--full": full or None}  # fmt: skip
    check_options(is_what_if=what_if, only_with=needing, not_with=unfit)
    from ullage.api.explain import explain_file
    from ullage.report.document.export import check_format
    from ullage.report.text.explain import brief_explain_blocks, explain_blocks

    exports = [("--export", path) for path in export]
    check_files(("--output", output), ("--html", html), ("--plot", plot), *exports, force=force)
    check_plot_option(plot)
    for path in export:
        check_format(path)
    target = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    if what_if:
        return show_what_if(file, target, gpu=gpu, memory=memory, python=python)
    if is_server_file(file):
        return show_server(file, target, unfit=unfit)
    unfit_paths = (request, html, *export)
    if file.is_dir():
        return _show_recording(file, target, full=full, plot=plot, unfit=unfit_paths)
    result = explain_file(file, request=request, try_remedies=try_remedies, python=python)
    if result.has_record_alone:
        return _show_recording(file, target, full=full, plot=plot, unfit=unfit_paths)

    # The answer to a request is among what is reserved.
    shown = explain_blocks if full or request is not None else brief_explain_blocks
    files = _write_files(result, export, html, plot, force=force)
    return target.give(result, shown(result.view), files, exit_code=result.exit_code)


def _write_files(
    result: Explanation,
    export: tuple[Path, ...],
    html: Path | None,
    plot: Path | None,
    *,
    force: bool,
) -> list[Path]:
    from ullage.files import write_text

    files = [result.export(path, force=force) for path in export]
    if html is not None:
        files.append(write_text(result.html, html, force=force))
    if plot is not None:
        files.append(result.plot(plot, force=force))
    return files


def _show_recording(
    file: Path,
    output: Output,
    *,
    full: bool,
    plot: Path | None,
    unfit: tuple[str | Path | None, ...],
) -> int:
    """Explains a recording that has no trace, or those of a job's ranks."""
    from ullage.api.record import read_recording
    from ullage.cli.record import show_recorded

    if any(option is not None for option in unfit):
        raise SpecError(
            f"--request, --html and --export need a trace, and {str(file)!r} has none; record with "
            "--mode full, and give one file"
        )
    recorded = read_recording(file)
    is_written = show_recorded(recorded, replace(output, is_full=full), plot=plot)
    return recorded.exit_code if is_written else UNWRITABLE


def _print_rule(code: str) -> int:
    from ullage.answers.text import print_blocks
    from ullage.explain.rules.registry import find_rule
    from ullage.report.text.explain import rule_blocks

    print_blocks(rule_blocks(find_rule(code)))
    return 0
