"""`ullage fit`: finds the fastest plan under which a program fits."""

from __future__ import annotations

import multiprocessing
import pkgutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.cli.main import HANGING
from ullage.cli.options.command import command
from ullage.cli.output import QUIET, Output, check_files, save_plan, show_failure
from ullage.errors import SpecError
from ullage.protocol.options.fit import SEARCH, FitOptions, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ullage.api.fit import Fit

# What the workers of an executor may take to end.
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class FitOutput(Output):
    """The outputs of a search; `output` takes the plan, not the document."""

    max_batch: bool = SEARCH.switch("Find the largest {batch} instead of a plan.")

    @property
    def beside(self) -> Output:
        """Where all but the plan goes."""
        return replace(self, output=None)


@command(
    most_used=("gpu", "python", "allow", "max_batch", "output"),
    outputs=("output", "html", "as_json", "force", "quiet"),
    says={"output": "Write the plan to this file, for example plan.json.", "quiet": QUIET},
)
def fit_command(options: FitOptions, output: FitOutput) -> int:
    """Search for the fastest plan under which a program fits, and run it on a simulated GPU.

    \b
    ullage fit --gpu rtx-4090 -o plan.json -- train.py --batch-size 16
    ullage run --gpu rtx-4090 --plan plan.json -- train.py --batch-size 16
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage fit --gpu rtx-4090 --max-batch -- train.py --batch-size {batch}
    ullage fit --gpu l4 --ladder n=8,16,32 -o ladder.json -- train.py --batch {n}

    Exits with 0 if the program fits, without or under a plan, 1 if no plan fits, 3 if the program
    itself failed, 130 if the search was interrupted: it still reports the best plan so far.
    """
    _check_output(options.program, output.output, force=output.force)
    output.check()
    if output.max_batch:
        if options.largest is not None:
            raise SpecError("--max-batch is --largest batch; give one of them")
        options = replace(options, largest="batch")
    has_sizes = options.largest is not None or options.ladder is not None
    if output.html is not None and has_sizes:
        raise SpecError("--html does not go with --ladder, --max-batch and --largest; leave it out")
    with (
        output.progress(has_lines=not has_sizes) as on_progress,
        _executor(options.executor) as executor,
    ):
        options = replace(
            options, executor=executor, on_progress=on_progress, on_failure=show_failure
        )
        return _search(options, output)


def _search(options: FitOptions, output: FitOutput) -> int:
    """The fastest plan, the largest size, or the plans of a guard."""
    if options.ladder is not None:
        from ullage.api.largest import find_ladder
        from ullage.report.text.ladder import ladder_blocks

        ladder = find_ladder.act(options)
        files: list[object] = []
        if output.output is not None and not ladder.report.failure:
            ladder.ladder.save(output.output, force=output.force)
            files = [output.output]
        return output.beside.give(ladder, ladder_blocks(ladder.report), files)
    if options.largest is not None:
        from ullage.api.largest import find_largest
        from ullage.report.text.largest import largest_blocks

        largest = find_largest.act(options)
        files = save_plan(largest.plan, output.output, force=output.force)
        return output.beside.give(largest, largest_blocks(largest.report), files)
    from ullage.api.fit import fit
    from ullage.report.text.fit import fit_blocks

    result = fit.act(options)
    return output.beside.give(result, fit_blocks(result.report), _write_files(result, output))


@contextmanager
def _executor(name: Workers | str | None) -> Iterator[Workers | None]:
    """The executor that a function of the user's makes, until the search ends; None without one."""
    if not isinstance(name, str):
        yield name
        return
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        executor = pkgutil.resolve_name(name)()
        if not hasattr(executor, "submit"):
            raise TypeError(f"it made {executor!r}, which has no submit()")
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise SpecError(
            f"--executor {name}: {type(error).__name__}: {error}; expected a function without "
            "arguments that makes an executor, such as concurrent.futures:ProcessPoolExecutor"
        ) from None
    with ExitStack() as stack:
        if hasattr(executor, "shutdown"):  # submitit's has nothing to shut down
            stack.callback(_shut_down, executor)
        yield executor


def _shut_down(executor: Executor) -> None:
    # The processes of one that hangs are ended.
    thread = threading.Thread(target=executor.shutdown, name=HANGING, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    for child in multiprocessing.active_children() if thread.is_alive() else ():
        child.kill()


def _check_output(program: Sequence[str], output: Path | None, *, force: bool) -> None:
    """Raises SpecError where a file is asked for that the program has no use for, or where that
    which goes beside it cannot be written.
    """
    if output is None or output.suffix not in {".yaml", ".yml"}:
        return
    if not {"launch", "accelerate.commands.launch"} & {*program[:3]}:
        raise SpecError(
            f"{str(output)!r} would be a configuration of Accelerate, and the program is not "
            "started by `accelerate launch`; start it so, or name the plan plan.json"
        )
    check_files(("--output", _plan_beside(output)), force=force)


def _plan_beside(output: Path) -> Path:
    """Where a plan goes that says what a launcher's configuration cannot."""
    return output.with_suffix(".plan.json")


def _write_files(result: Fit, output: FitOutput) -> list[object]:
    """The plan, one that changes nothing where none is needed."""
    from ullage.files import write_text

    files: list[object] = []
    best, path, force = result.report.best, output.output, output.force
    configuration = "" if best is None else best.configuration
    if path is not None and configuration:
        files.append(write_text(configuration, path, force=force))
    plan = result.plan if configuration else result.plan_to_write
    if path is not None and plan is not None:
        path = _plan_beside(path) if configuration else path
        plan.save(path, force=force)
        files.append(path)
    return files
