"""The options of `ullage watch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ullage.ground.protocol.option import OPTIONS, SETTINGS


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The GPUs to watch, and the receivers of alerts."""

    once: bool = OPTIONS.switch("Print the state of now, and end.")
    as_json: bool = OPTIONS.switch("Print JSON, a line for each sample.", "--json")
    interval: float = OPTIONS(
        "Time between two samples, from 0.1; default: 1.", "SECONDS", default=1.0
    )
    record: Path | None = OPTIONS("Also keep every sample in a file.", "FILE")
    replay: Path | None = OPTIONS("Show such a file, not this machine.", "FILE")
    alerts: bool = OPTIONS.switch("Print alerts as they are raised and cleared.")
    config: Path | None = OPTIONS("Rules of alerts; default: ullage.toml, if any.", "FILE")
    listen: str | None = OPTIONS(
        "Serve metrics to Prometheus; default host: 127.0.0.1.", "[HOST:]PORT"
    )
    token_file: Path | None = OPTIONS("Token that scrapes have to bring.", "FILE")
    certificate: Path | None = OPTIONS("Serve over TLS; PEM.", "FILE")
    key: Path | None = OPTIONS("The certificate's key; PEM.", "FILE")
    names: bool = SETTINGS.switch("Let --listen have programs' names too.")
