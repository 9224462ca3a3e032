"""`ullage fit`: finds the fastest plan under which a program fits."""

from __future__ import annotations

import multiprocessing
import pkgutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.errors import SpecError
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output, check_files, ending_of, show_failure
from ullage.verbs.command_line.streams import HANGING
from ullage.verbs.fit.options import FitOptions, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ullage.verbs.fit.function import Fit

# What the workers of an executor may take to end.
_PATIENCE_S = 10.0


@command(
    most_used=("gpu", "gpus", "python", "allow", "output"),
    says={"output": "Write the plan, for example plan.json; or .html, a page; repeatable."},
)
def fit_command(options: FitOptions, output: Output) -> int:
    """Search for the fastest plan under which a program fits, and run it on a simulated GPU.

    \b
    ullage fit --gpu rtx-4090 -o plan.json -- train.py --batch-size 16
    ullage run --gpu rtx-4090 --plan plan.json -- train.py --batch-size 16
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage fit --gpu l4 --ladder n=8,16,32 -o ladder.json -- train.py --batch {n}

    Exits with 0 if the program fits, without or under a plan, 1 if no plan fits, 3 if the program
    itself failed, 130 if the search was interrupted: it still reports the best plan so far.
    """
    has_ladder = options.ladder is not None
    output.check(*() if has_ladder else (".html", ".yaml", ".yml"))
    pages = [path for path in output.output if ending_of(path) == ".html"]
    plans = [path for path in output.output if path not in pages]
    for plan in plans:
        _check_plan(options.program, plan, force=output.force)
    with (
        output.progress(has_lines=not has_ladder) as on_progress,
        _executor(options.executor) as executor,
    ):
        options = replace(
            options, executor=executor, on_progress=on_progress, on_failure=show_failure
        )
        return _search(options, replace(output, output=pages), plans)


def _search(options: FitOptions, output: Output, plans: Sequence[Path]) -> int:
    """The fastest plan, or the plans of a guard."""
    if options.ladder is not None:
        from ullage.verbs.fit.ladder_function import find_ladder

        ladder = find_ladder.act(options)
        files = [] if ladder.report.failure else plans
        for path in files:
            ladder.ladder.save(path, force=output.force)
        return output.give(ladder, files)
    from ullage.verbs.fit.function import fit

    result = fit.act(options)
    files = [file for path in plans for file in _write_plan(result, path, force=output.force)]
    return output.give(result, files)


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


def _check_plan(program: Sequence[str], path: Path, *, force: bool) -> None:
    """Raises SpecError where a file is asked for that the program has no use for, or where that
    which goes beside it cannot be written.
    """
    if path.suffix not in {".yaml", ".yml"}:
        return
    if not {"launch", "accelerate.commands.launch"} & {*program[:3]}:
        raise SpecError(
            f"{str(path)!r} would be a configuration of Accelerate, and the program is not "
            "started by `accelerate launch`; start it so, or name the plan plan.json"
        )
    check_files(("--output", _plan_beside(path)), force=force)


def _plan_beside(output: Path) -> Path:
    """Where a plan goes that says what a launcher's configuration cannot."""
    return output.with_suffix(".plan.json")


def _write_plan(result: Fit, path: Path, *, force: bool) -> list[Path]:
    """Writes the plan, one that changes nothing where none is needed; returns its files."""
    from ullage.ground.files import write_text

    best = result.report.best
    configuration = "" if best is None else best.configuration
    files = [write_text(configuration, path, force=force)] if configuration else []
    plan = result.plan if configuration else result.plan_to_write
    if plan is not None:
        path = _plan_beside(path) if configuration else path
        plan.save(path, force=force)
        files.append(path)
    return files
