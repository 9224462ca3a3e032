"""What the host of a recorded server took: read off the moments of its scheduler's turns.

figures = read_host(Path("h100-vllm-0.26.0/llama.npz"), launches)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Burst", "HostFigures", "read_host"]

Floats = NDArray[np.float64]
TOKENS, REQUESTS, PROMPTS = range(3)
"""Columns of "schedule" (store.py)."""
_LAUNCH_TOKENS: Final = 4000
"""Of longer steps the loop waits for the device, since two are under way."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that were sent at once: of `tokens` each, `number` of which came within `seconds`
    while others of them were still to come, so that the HTTP server was never idle.
    """

    tokens: int
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Seconds.

    Attributes:
        step_s, request_s: to schedule a step and take its tokens in, by least squares.
        num_steps: of how many steps without prompts.
        launch_s: for each piece of work, the median of `num_launches` steps with prompts, and
            `launch_spread_s`: its first and ninth decile.
        http_s, prompt_token_s: by least squares of the seconds of `bursts`.
        answer_token_s: by least squares of the delay of an answer's last token.
    """

    step_s: float
    request_s: float
    num_steps: int
    launch_s: float
    launch_spread_s: tuple[float, float]
    num_launches: int
    http_s: float
    prompt_token_s: float
    bursts: tuple[Burst, ...]
    answer_token_s: float


def read_host(path: Path, launches: Callable[[int], int]) -> HostFigures:
    """Of a recorded server.

    Args:
        path: its table.
        launches: how many pieces of work a step of so many tokens is, where some are of prompts.
    """
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    step_s, request_s, num_steps = _loop(columns)
    pieces = np.array([*_launches(columns, launches)])
    bursts = tuple(_bursts(columns))
    numbers = np.array([burst.number for burst in bursts])
    tokens = numbers * [burst.tokens for burst in bursts]
    (http_s, prompt_token_s), *_ = np.linalg.lstsq(
        np.stack([numbers, tokens], 1), np.array([burst.seconds for burst in bursts]), rcond=None
    )
    low, likely, high = np.percentile(pieces, (10, 50, 90))
    return HostFigures(
        step_s, request_s, num_steps, float(likely), (float(low), float(high)), len(pieces),
        float(http_s), float(prompt_token_s), bursts, _answers(columns),
    )  # fmt: skip


def _loop(columns: dict[str, Any]) -> tuple[float, float, int]:
    """The times to schedule and to update, by the requests of a step."""
    count = min(len(columns["schedule"]), len(columns["update_s"]))
    is_decode = columns["schedule"][:count, PROMPTS] == 0
    seconds = sum(np.diff(columns[name][:count], axis=1)[:, 0] for name in _LOOP)
    requests = columns["schedule"][:count, REQUESTS]
    request_s, step_s = np.polyfit(requests[is_decode], seconds[is_decode], 1)
    return float(step_s), float(request_s), int(is_decode.sum())


_LOOP: Final = ("schedule_s", "update_s")


def _launches(columns: dict[str, Any], launches: Callable[[int], int]) -> Iterator[float]:
    """Seconds for each piece of work of steps with prompts after which the loop goes on at once."""
    begins = np.sort(np.concatenate([columns["schedule_s"][:, 0], columns["added_s"]]))
    updates = columns["update_s"][:, 0]
    for (_, end_s), (tokens, _, prompts, *_) in zip(
        columns["schedule_s"], columns["schedule"], strict=True
    ):
        later = begins[np.searchsorted(begins, end_s) :]
        update = updates[np.searchsorted(updates, end_s) :]
        is_next = len(later) and (not len(update) or later[0] < update[0])
        if prompts and tokens <= _LAUNCH_TOKENS and is_next:
            yield (later[0] - end_s) / launches(int(tokens))


def _bursts(columns: dict[str, Any]) -> Iterator[Burst]:
    """Of each load, the requests that were sent before any had an answer."""
    turns = columns["schedule_s"][:, 0]
    for load in np.unique(columns["load"]):
        is_of = columns["load"] == load
        sent, added = columns["sent_s"][is_of], np.sort(columns["added_s"][is_of])
        users = int((sent < np.nanmin(columns["last_s"][is_of])).sum())
        added = added[:users]
        if users < 32 or np.ptp(columns["prompt_tokens"][is_of]) > 2:
            continue
        # From the first turn of the loop that had some of them to the last that had not all.
        first = np.searchsorted(turns, added[0])
        last = np.searchsorted(turns, added[-1]) - 1
        number = int((added < turns[last]).sum() - (added < turns[first]).sum())
        tokens = int(np.median(columns["prompt_tokens"][is_of]))
        yield Burst(tokens, number, float(turns[last] - turns[first]))


def _answers(columns: dict[str, Any]) -> float:
    """How much later the last token of an answer comes for each request in its step: half of them
    are streamed before it, on average.
    """
    count = min(len(columns["schedule"]), len(columns["update_s"]))
    ends, requests = columns["update_s"][:count, 1], columns["schedule"][:count, REQUESTS]
    steps = np.searchsorted(ends, columns["last_s"]) - 1
    delays = columns["last_s"] - ends[steps]
    return float(np.polyfit(requests[steps] / 2, delays, 1)[0])
