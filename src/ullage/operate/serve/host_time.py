"""The host's time: the engine's loop for each step, and the HTTP server for each request.

    host = parse_host_time("measured")             # of one server, see MEASURED
    host = parse_host_time("launch=40us,http=0s")  # the others as measured
    host = parse_host_time("1ms+20us")             # a step, each request in it, and nothing else
    host.seconds(64)

It is not a property of the server that is asked about, but of its processor and of its engine's
code; nor is it measured on the machine that runs ullage. So the same figures count in each run.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ullage.ground.errors import SpecError

_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")


class HostTime(NamedTuple):
    """Seconds of the host.

    Attributes:
        step_s: of the engine's loop for each step: to schedule it, and to take its tokens in.
        request_s: and for each request in it.
        launch_s: to give the device a piece of work, a kernel or a graph, from Python. The engine
            takes no requests meanwhile, and the device waits where it is faster.
        http_s: of the HTTP server for each request: to take it in, and to hand it to the engine.
        prompt_token_s: and for each token of its prompt, with tokenizing.
        answer_token_s: and for each token that it streams.
    """

    step_s: float = 0.0
    request_s: float = 0.0
    launch_s: float = 0.0
    http_s: float = 0.0
    prompt_token_s: float = 0.0
    answer_token_s: float = 0.0

    def seconds(self, requests: int) -> float:
        """The seconds of the engine's loop, for a step with this many requests."""
        return self.step_s + self.request_s * requests

    def text(self) -> str:
        """As parse_host_time reads it."""
        return ",".join(f"{name}={1e6 * getattr(self, _FIELDS[name]):g}us" for name in _FIELDS)


_FIELDS: Final = {
    "step": "step_s", "request": "request_s", "launch": "launch_s", "http": "http_s",
    "prompt": "prompt_token_s", "answer": "answer_token_s",
}  # fmt: skip
NO_HOST_TIME: Final = HostTime()
MEASURED: Final = HostTime(
    step_s=200e-6, request_s=22e-6, launch_s=80e-6,
    http_s=0.9e-3, prompt_token_s=2.2e-6, answer_token_s=70e-6,
)  # fmt: skip
"""Read off the clocks of one server (docs/results/serve.md): vLLM 0.26.0 on an H100 of a
virtual machine with 16 cores of an Intel Xeon, Llama 3.1 8B, prompts as text, a client on the same
machine."""


def parse_host_time(text: str) -> HostTime:
    """Parses "measured", "none", "1ms+20us" for each step and for each request in it, or names with
    times, where those that are not named are as measured.

    Raises:
        SpecError: a name is not known or is there twice, or a part is not a time with a unit.
    """
    if text in ("measured", "none"):
        return MEASURED if text == "measured" else NO_HOST_TIME
    if "=" not in text:
        pair_s = [_seconds(part, text) for part in text.split("+")]
        if len(pair_s) > 2:
            raise _problem(text, text)
        return HostTime(*pair_s)
    times_s: dict[str, float] = {}
    for part in text.split(","):
        name, _, time = part.strip().partition("=")
        if name not in _FIELDS or _FIELDS[name] in times_s:
            raise _problem(text, part)
        times_s[_FIELDS[name]] = _seconds(time, text)
    return MEASURED._replace(**times_s)


def _seconds(part: str, text: str) -> float:
    match = _TIME.fullmatch(part.strip())
    if match is None:
        raise _problem(text, part)
    return float(match[1]) * _UNITS_S[match[2]]


def _problem(text: str, part: str) -> SpecError:
    return SpecError(
        f"host time {text!r}: found {part!r}; expected measured, none, the time of a step and of "
        f"each request in it, such as 1ms+20us, or times of {', '.join(_FIELDS)}, each once, such "
        "as launch=40us,http=1ms"
    )
