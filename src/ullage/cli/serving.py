"""`ullage estimate --serve`: what serving a model needs."""

from __future__ import annotations

from ullage.cli.options.estimate import EstimateOptions


def show_serving(options: EstimateOptions, model: str) -> int:
    """Estimates a server's memory and shows it; returns what to exit with."""
    from ullage.api.serving import ServingAnswer, estimate_serving
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
        answer, answer, lambda given: serving_line(given.estimate), ServingAnswer.show,
        html=options.html, exit_code=int(answer.fits is False),
    )  # fmt: skip
