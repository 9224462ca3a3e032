"""`ullage estimate --serve`: what serving a model needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.options.estimate import EstimateOptions

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
    return options.target.give(
        answer, answer, lambda given: serving_line(given.estimate), _print, html=options.html,
        exit_code=int(answer.fits is False),
    )  # fmt: skip
