"""Pushes the state of now over OTLP/HTTP each minute, by OpenTelemetry's own SDK.

    with Push(endpoint, resource, current, max_age_s=30.0, say=print):
        ...

The SDK collects, sends and retries in a thread of its own, with its own variables: the interval
(OTEL_METRIC_EXPORT_INTERVAL), the time-out (OTEL_EXPORTER_OTLP_TIMEOUT), headers, certificates and
compression. What is sent is the state at that moment, so nothing waits in a queue: where a server
does not answer, the next push has the state of then.

What the SDK logs may hold addresses, headers and answers. It is not shown; that pushes fail, why in
one word, and that they succeed again is said.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from ullage.version import __version__
from ullage.watch.exporter.points import METRICS, Current
from ullage.watch.otlp.names import Kind, attributes_of, instrument_of

_LOGGERS: Final = ("opentelemetry", "urllib3")
_END_MS: Final = 5_000.0
_STATUSES: Final = range(100, 600)


class Push:
    """Pushes between `with` and its end; what is there then is pushed once more.

    Args:
        endpoint: the whole address.
        resource: attributes of the host and of this process.
        current: what is pushed.
        max_age_s: a sample that is older is not pushed.
        say: is told that pushes fail, and that they succeed again; called in any thread.
    """

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        current: Current,
        *,
        max_age_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._endpoint, self._resource = endpoint, dict(resource)
        self._current, self._max_age_s = current, max_age_s
        self._lock = threading.Lock()
        self._version = 0
        self._observations: dict[str, list[Observation]] = {}
        self._outcome = _Outcome(urlsplit(endpoint).hostname or "", say)
        self._provider: Any = None

    def __enter__(self) -> Self:
        self._outcome.listen()
        exporter = OTLPMetricExporter(endpoint=self._endpoint)
        self._outcome.follow(exporter)
        self._provider = MeterProvider(
            metric_readers=[PeriodicExportingMetricReader(exporter)],
            resource=Resource.create(self._resource),
            shutdown_on_exit=False,
        )
        self._create_instruments(self._provider.get_meter("ullage", __version__))
        return self

    def __exit__(self, *_: object) -> None:
        self._provider.shutdown(timeout_millis=_END_MS)
        self._outcome.end()

    def _create_instruments(self, meter: Any) -> None:  # noqa: ANN401 - of an optional library
        create = {
            Kind.GAUGE: meter.create_observable_gauge,
            Kind.COUNTER: meter.create_observable_counter,
            Kind.UP_DOWN: meter.create_observable_up_down_counter,
        }
        texts: dict[str, list[str]] = defaultdict(list)
        instruments = {}
        for metric in METRICS:
            instrument = instrument_of(metric)
            instruments[instrument.name] = instrument
            texts[instrument.name].append(metric.text)
        for name, instrument in instruments.items():
            create[instrument.kind](
                name,
                callbacks=[functools.partial(self._observe, name)],
                unit=instrument.unit,
                # Those of the exporter name its unit.
                description=texts[name][0].partition(" (")[0] if len(texts[name]) == 1 else "",
            )

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if self._current.age_s > self._max_age_s:
                return ()
            version = self._current.version
            if version != self._version:
                self._observations, self._version = self._translate(), version
            return self._observations.get(name, ())

    def _translate(self) -> dict[str, list[Observation]]:
        """The points by the instrument's name; of those with the same attributes the first."""
        observations: dict[str, dict[tuple[object, ...], Observation]] = defaultdict(dict)
        for metric, labels, value in self._current.points() or ():
            instrument = instrument_of(metric)
            attributes = attributes_of(instrument, labels)
            key = tuple(sorted(attributes.items()))
            scaled = value * instrument.factor
            exact = int(scaled) if scaled.is_integer() else scaled
            observations[instrument.name].setdefault(key, Observation(exact, attributes))
        return {name: list(values.values()) for name, values in observations.items()}


class _Outcome(logging.Handler):
    """Says when pushes begin to fail and when they succeed again; takes what the SDK logs.

    host: of the server; all that messages tell of its address.
    """

    def __init__(self, host: str, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._host, self._tell = host, say
        self._reason = ""
        self._is_failing = False
        self._before: list[tuple[logging.Logger, bool]] = []

    def listen(self) -> None:
        """Takes the logs of the SDK, which reach nobody else."""
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.propagate))
            logger.propagate = False
            logger.addHandler(self)

    def end(self) -> None:
        """Lets logs be as they were."""
        for logger, propagates in self._before:
            logger.removeHandler(self)
            logger.propagate = propagates
        self._before = []

    def emit(self, record: logging.LogRecord) -> None:
        """Of all that is logged, the status of an answer or the kind of an error is kept."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        for argument in arguments:
            if isinstance(argument, int) and argument in _STATUSES:
                self._reason = f"the server answered {argument}"
            elif isinstance(argument, Exception):
                self._reason = type(argument).__name__

    def follow(self, exporter: OTLPMetricExporter) -> None:
        """Looks at what becomes of each push."""
        export = exporter.export

        @functools.wraps(export)
        def export_and_tell(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            self._reason = ""
            result = export(*arguments, **options)
            self._note(is_failure=result is not MetricExportResult.SUCCESS)
            return result

        setattr(exporter, "export", export_and_tell)  # noqa: B010 - to a type checker it is final

    def _note(self, *, is_failure: bool) -> None:
        if is_failure and not self._is_failing:
            reason = self._reason or "no answer in time"
            self._tell(f"OTLP to {self._host}: metrics are not delivered: {reason}")
        elif self._is_failing and not is_failure:
            self._tell(f"OTLP to {self._host}: metrics are delivered again")
        self._is_failing = is_failure
