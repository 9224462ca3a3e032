"""`ullage serve --forecast`: preemptions and the use of the cache, without the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.output import Output

if TYPE_CHECKING:
    from ullage.cli.serve import ServeOptions


def show_forecast(options: ServeOptions, traffic: str, gpu: str) -> int:
    """Forecasts and shows; the exit code is 1 where requests can never be answered."""
    from ullage.api.servers.forecast import forecast_command
    from ullage.report.text.forecast import forecast_blocks

    result = forecast_command(
        options.program, traffic, gpu=gpu, cache=options.cache, slo=options.slo
    )
    view = (result.forecast, result.traffic, result.slo, result.tiers)
    target = Output(
        is_json=options.as_json, is_quiet=options.quiet, path=options.output, force=options.force
    )
    return target.give(result, forecast_blocks(view), exit_code=result.exit_code)
