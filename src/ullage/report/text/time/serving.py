"""The times of a server for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ullage.estimate.time.serving import ServingTime
from ullage.report.terminal import print_parts
from ullage.report.text.time.numbers import format_dollars, format_interval, format_rate


def print_serving_time(time: ServingTime, console: Console) -> None:
    """Prints the section."""
    rows = [Text("\nTime", style="bold")]
    rows += [Text(f"  {line}") for line in serving_time_lines(time)]
    rows.append(Text("\nThe times rest on", style="bold"))
    print_parts([*rows, *(Text(f"  {line}") for line in time.basis)], console)


def serving_time_lines(time: ServingTime) -> Iterator[str]:
    """The times, a line each."""
    yield (
        f"first token of a prompt of {time.prompt:,} tokens, alone: {format_interval(time.prefill)}"
    )
    requests = "1 request" if time.users == 1 else f"{time.users:,} requests"
    yield f"each further token of {requests} of {time.context:,}: {format_interval(time.decode)}"
    yield f"new tokens a second: {format_rate(time.tokens_per_s.s)}"
    if time.million_tokens is not None:
        yield f"a million new tokens cost {format_dollars(time.million_tokens)}"
