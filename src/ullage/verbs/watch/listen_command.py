"""`ullage watch --listen`: serves what it watches to Prometheus."""

from __future__ import annotations

from contextlib import ExitStack

from ullage.ground.errors import SpecError
from ullage.verbs.command_line.streams import refuse_reload, say
from ullage.verbs.watch.listen_function import Exporter, open_exporter
from ullage.verbs.watch.options import WatchOptions


def enter_exporter(files: ExitStack, options: WatchOptions) -> Exporter:
    """Serves until `files` is closed, and says where.

    Raises:
        SpecError: as `open_exporter`, and if there is nothing to serve.
    """
    if options.once or options.replay is not None:
        raise SpecError("--listen serves what happens now; it does not go with --once or --replay")
    exporter = files.enter_context(open_exporter(options))
    refuse_reload()
    say(f"Serving {exporter.url}", is_aside=True)
    return exporter
