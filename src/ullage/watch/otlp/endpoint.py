"""Where metrics are pushed to: an address of the command line, or OpenTelemetry's variables.

find_endpoint("http://collector:4318", os.environ)     # http://collector:4318/v1/metrics
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from ullage.errors import SpecError

_PATH: Final = "/v1/metrics"
_OF_METRICS: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_OF_ALL: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"


def find_endpoint(address: str, environment: Mapping[str, str]) -> str:
    """The address that metrics are posted to.

    Args:
        address: of a collector, to which the path of metrics is added where it is not there; empty:
            the variables have it.
        environment: has the variables.

    Raises:
        SpecError: there is none, it is no web address, has a password, or another protocol is
            asked for. No message has the address, which may be a secret.
    """
    if address:
        return _with_path(_check(address, "--otlp"))
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise SpecError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}, and ullage speaks {_PROTOCOL} alone; "
            "give its address to --otlp, mostly with the port 4318"
        )
    if environment.get(_OF_METRICS):
        return _check(environment[_OF_METRICS], _OF_METRICS).geturl()
    if environment.get(_OF_ALL):
        return _with_path(_check(environment[_OF_ALL], _OF_ALL))
    raise SpecError(
        f"--otlp has no address, and {_OF_ALL} is not set; give one of them, for example "
        "--otlp http://127.0.0.1:4318"
    )


def _check(address: str, source: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise SpecError(
            f"{source} holds no web address; give one such as http://127.0.0.1:4318 or "
            "https://collector.example"
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise SpecError(
            f"{source} holds a password or a query, which other users and logs may see; "
            "set OTEL_EXPORTER_OTLP_HEADERS instead, for example to "
            "Authorization=Bearer%20TOKEN"
        )
    return parts


def _with_path(parts: SplitResult) -> str:
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(_PATH) else f"{path}{_PATH}").geturl()
