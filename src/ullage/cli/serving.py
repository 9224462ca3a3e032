"""`ullage estimate --serve`: what serving a model needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.options.estimate import EstimateOptions
from ullage.cli.output import UNWRITABLE, write_result

if TYPE_CHECKING:
    from rich.console import Console

    from ullage.api.serving import ServingAnswer


def _print(answer: ServingAnswer, console: Console) -> None:
    from ullage.report.text.serving import print_serving

    print_serving(answer.estimate, answer.source, console, answer.gpus, answer.knobs)
    if answer.time is not None:
        from ullage.report.text.time.serving import print_serving_time

        print_serving_time(answer.time, console)


def show_serving(options: EstimateOptions, model: str) -> int:
    """Estimates a server's memory and shows it; returns what to exit with."""
    from ullage.api.serving import estimate_serving
    from ullage.files import write_text
    from ullage.report.text.serving import serving_line

    answer = estimate_serving(
        model,
        gpu=options.gpu,
        which_gpu=options.which_gpu,
        knobs=options.knobs,
        time=options.time,
        price=options.price,
        interconnect=options.interconnect,
        **options.serving_plan,
    )
    html, target = options.html, options.target
    pages = [] if html is None else [write_text(answer.html, html, force=options.force)]
    is_written = write_result(
        target,
        lambda: answer.document,
        lambda: target.show(
            answer.estimate,
            serving_line,
            lambda _, console: _print(answer, console),
        ),
        pages,
    )
    if not is_written:
        return UNWRITABLE
    return 1 if answer.fits is False else 0
