"""`ullage watch --listen`: serves what it watches to Prometheus."""

from __future__ import annotations

from contextlib import ExitStack

from ullage.api.listen import Exporter, ListenOptions, open_exporter
from ullage.cli.main import refuse_reload, say
from ullage.errors import SpecError


def enter_exporter(files: ExitStack, options: ListenOptions, *, is_past: bool) -> Exporter:
    """Serves until `files` is closed, and says where.

    Args:
        files: closes the server.
        options: of the command line.
        is_past: whether a recording or one moment alone is shown.

    Raises:
        SpecError: as `open_exporter`, and if there is nothing to serve.
    """
    if is_past:
        raise SpecError("--listen serves what happens now; it does not go with --once or --replay")
    exporter = files.enter_context(open_exporter(options))
    refuse_reload()
    say(f"Serving {exporter.url}", is_aside=True)
    return exporter
