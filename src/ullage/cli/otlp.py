"""`ullage watch --otlp`: pushes what it watches to an OpenTelemetry collector."""

from __future__ import annotations

from contextlib import ExitStack
from urllib.parse import urlsplit

from ullage.api.otlp import PushedMetrics, PushOptions, open_push
from ullage.cli.main import say
from ullage.errors import SpecError


def enter_push(files: ExitStack, options: PushOptions, *, is_past: bool) -> PushedMetrics:
    """Pushes until `files` is closed, and says where to.

    Args:
        files: ends it.
        options: of the command line.
        is_past: whether a recording or one moment alone is shown.

    Raises:
        SpecError: as `open_push`, and if there is nothing to push.
        EnvironmentProblem: as `open_push`.
    """
    if is_past:
        raise SpecError("--otlp pushes what happens now; it does not go with --once or --replay")
    push = open_push(options, say=lambda text: say(f"ullage: {text}", is_aside=True))
    files.enter_context(push)
    say(f"Pushing metrics to {urlsplit(push.endpoint).netloc}", is_aside=True)
    return push
