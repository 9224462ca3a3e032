"""The times of a server for people."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.players.eager.time.serving import ServingTime
from ullage.verbs.text.time.numbers import format_dollars, format_interval, format_rate


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
