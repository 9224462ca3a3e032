"""`ullage run --sweep`, and on several GPUs: runs of one program, in one table."""

from __future__ import annotations

from ullage.cli.options.run import RunOptions
from ullage.cli.output import UNWRITABLE, show_failure, write_sweep
from ullage.errors import SpecError


def run_sweep(options: RunOptions) -> int:
    """Runs the program with each combination of values and GPUs.

    Raises:
        SpecError: an option does not go with a sweep.
    """
    _check_options(options)
    from ullage.answers.plot import check_plot
    from ullage.api.sweep import sweep

    if options.plot is not None:
        check_plot(options.plot)
    output = options.target
    with output.progress() as on_progress:
        result = sweep(
            options.program,
            _parse_variables(options.sweep),
            gpu=options.gpu_names,
            memory=options.memory,
            capability=options.capability,
            budget=options.budget,
            python=options.python,
            on_progress=on_progress,
            on_failure=show_failure,
            price=options.price,
            **options.of_program,
        )
    if options.plot is not None:
        result.plot(options.plot, force=options.force)
    return result.exit_code if write_sweep(result, output, options.plot) else UNWRITABLE


def _check_options(options: RunOptions) -> None:
    """A sweep is over one process on one device, and keeps its table alone."""
    if options.snapshot is not None:
        raise SpecError("a sweep keeps no snapshots; leave --snapshot out, or run one value")
    if options.html is not None:
        raise SpecError("--html shows one run; leave it out, or run one value on one GPU")
    if options.timeline is not None:
        raise SpecError("--timeline is of one run; leave it out, or run one value on one GPU")
    for flag, value in (
        ("--rank", options.ranks),
        ("--world-size", options.world_size),
        ("--local-world-size", options.local_world_size),
        ("--gpus", options.gpus),
    ):
        if value is not None:
            raise SpecError(f"a sweep does not go with {flag}; leave one of them out")


def _parse_variables(texts: tuple[str, ...]) -> dict[str, list[str]]:
    variables: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise SpecError(f"--sweep {text!r} gives no values; for example: --sweep batch=1,2,4")
        if name in variables:
            raise SpecError(f"--sweep names {name!r} twice; give all its values at once")
        variables[name] = values.split(",")
    return variables
