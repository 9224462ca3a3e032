"""`ullage serve --forecast`: preemptions and the use of the cache, without the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.output import Output

if TYPE_CHECKING:
    from ullage.protocol.options.serve import ServeOptions


def show_forecast(options: ServeOptions, traffic: str, gpu: str, output: Output) -> int:
    """Forecasts and shows; the exit code is 1 where requests can never be answered."""
    from ullage.api.servers.forecast import forecast_command
    from ullage.report.text.forecast import forecast_line, print_forecast

    result = forecast_command(
        options.program, traffic, gpu=gpu, cache=options.cache, slo=options.slo
    )
    view = (result.forecast, result.traffic, result.slo, result.tiers)
    return output.give(result, view, forecast_line, print_forecast, exit_code=result.exit_code)
