"""`ullage estimate --serve`: what serving a model needs."""

from __future__ import annotations

from ullage.cli.options.estimate import EstimateOptions


def show_serving(options: EstimateOptions, model: str) -> int:
    """Estimates a server's memory and shows it; returns what to exit with."""
    from ullage.api.serving import estimate_serving

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
        answer, answer.blocks(), html=options.html, exit_code=int(answer.fits is False)
    )
