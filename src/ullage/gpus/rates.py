"""The measured rates of a GPU, as fractions of the rates in the catalogue. `ullage calibrate`
writes them and `ullage fit` reads them; the schema is "ullage.rates/1".

    rates = Rates.load("rates.json")
    rates.matmul["bfloat16"].seconds(flops, stated_flops_per_s)

Work has a latency and then runs at a constant rate: t = start + work / (frac x stated).
Source: Hockney, Jesshope, Parallel Computers 2, 1988, section 1.3 (r-infinity and n-half).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from ullage.errors import SpecError
from ullage.gpus.measurement_files import measurement_path

SCHEMA: Final = "ullage.rates/1"
# If the catalogue has no host link, a slow one is assumed; some links are thirty times as fast.
_MOST_FRAC: Final = 100
_ROOT: Final = "the file"


class Sample(NamedTuple):
    """One measurement: an amount of work (operations or bytes) and its duration."""

    work: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a kind of work: the fraction of the stated rate that it reaches, and the latency
    in seconds.
    """

    frac: float
    start_s: float = 0.0

    def seconds(self, work: float, stated_per_s: float) -> float:
        """The duration of this amount of work, given the rate in the catalogue."""
        return self.start_s + work / (self.frac * stated_per_s)


STATED: Final = Speed(1.0)
"""The speed of work that was not measured: the stated rate itself."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The measured rates of a GPU.

    Attributes:
        gpu: its name in the catalogue.
        device: CUDA's name for it.
        driver, torch: the versions during the measurement.
        date: the date of the measurement, such as "2026-11-22".
        matmul: matrix products, by the precision of the operands as in the record of the work
            ("bfloat16", "tf32").
        attention: "forward" and "backward", relative to the rate of matmul in the same precision.
        memory: reading and writing of the device's memory.
        to_device, to_host: copies over the host link, from and to pinned memory.
        peers: the bytes that a GPU sends to others in collectives; None: there was only one GPU.
        launch_s: the time between two kernel launches by PyTorch's eager host code.
        skipped: what could not be measured, and why.
        source: the file that it was read from; not part of the file.
    """

    gpu: str
    device: str
    driver: str
    torch: str
    date: str
    matmul: Mapping[str, Speed] = field(hash=False)
    attention: Mapping[str, Speed] = field(hash=False)
    memory: Speed
    to_device: Speed
    to_host: Speed
    peers: Speed | None
    launch_s: float
    skipped: Mapping[str, str] = field(hash=False)
    source: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The document that the file contains."""
        return {"schema": SCHEMA, **{k: v for k, v in asdict(self).items() if k != "source"}}

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Rates:
        """Reads a file.

        Raises:
            SpecError: it cannot be read, or is not a file of rates.
        """
        name = os.fspath(path)
        try:
            document = json.loads(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise SpecError(
                f"the rates {name!r} cannot be read: {error.strerror or error}"
            ) from None
        except ValueError as error:
            raise SpecError(
                f"{name} is not JSON: {error}; make it with `ullage calibrate`"
            ) from None
        try:
            return _parse(document, name)
        except SpecError as error:
            raise SpecError(f"{name}: {error}; make it with `ullage calibrate`") from None


def default_path(slug: str) -> Path:
    """The default path of a GPU's file of rates."""
    return measurement_path("rates", slug)


def stored_rates(slug: str) -> Rates | None:
    """Reads the stored rates of a GPU in the catalogue; None: it was not measured.

    Raises:
        SpecError: the file is damaged.
    """
    path = default_path(slug)
    return Rates.load(path) if path.exists() else None


def fit_speed(samples: Sequence[Sample], stated_per_s: float) -> Speed:
    """Fits a speed to measurements by least squares of the relative errors. Its latency is never
    negative.

    Raises:
        SpecError: there are no measurements, or they give no rate.
    """
    usable = [sample for sample in samples if sample.work > 0 and sample.seconds > 0]
    if not usable:
        raise SpecError("nothing was measured")
    # t = a + b w, each equation divided by its t: minimise the sum of (a x + b y - 1)^2.
    pairs = [(1 / sample.seconds, sample.work / sample.seconds) for sample in usable]
    xx, xy, yy = (
        math.fsum(left * right for left, right in products)
        for products in (
            [(x, x) for x, _ in pairs],
            [(x, y) for x, y in pairs],
            [(y, y) for _, y in pairs],
        )
    )
    x, y = (math.fsum(pair[place] for pair in pairs) for place in (0, 1))
    determinant = xx * yy - xy * xy
    start = (x * yy - y * xy) / determinant if determinant > 1e-9 * xx * yy else 0.0
    slope = (y * xx - x * xy) / determinant if start > 0 else y / yy
    if slope <= 0:
        raise SpecError("larger work took no longer than smaller; measure on an idle machine")
    return Speed(1 / (slope * stated_per_s), max(start, 0.0))


def _parse(value: object, source: str) -> Rates:
    document = _expect(value, dict, _ROOT)
    if document.get("schema") != SCHEMA:
        raise SpecError(f"its schema is {document.get('schema')!r}; expected {SCHEMA!r}")
    names = [field.name for field in fields(Rates) if field.name != "source"]
    _only(document, ["schema", *names], _ROOT)
    texts = {name: _expect(document[name], str, name) for name in names[:5]}
    skipped = _expect(document["skipped"], dict, "skipped")
    return Rates(
        **texts,
        matmul=_speeds(document["matmul"], "matmul"),
        attention=_speeds(document["attention"], "attention"),
        memory=_speed(document["memory"], "memory"),
        to_device=_speed(document["to_device"], "to_device"),
        to_host=_speed(document["to_host"], "to_host"),
        peers=None if document["peers"] is None else _speed(document["peers"], "peers"),
        launch_s=_number(document["launch_s"], "launch_s"),
        skipped={name: _expect(why, str, "skipped") for name, why in skipped.items()},
        source=source,
    )


def _speeds(value: object, what: str) -> dict[str, Speed]:
    fields = _expect(value, dict, what)
    return {name: _speed(speed, f"{what}.{name}") for name, speed in fields.items()}


def _speed(value: object, what: str) -> Speed:
    fields = _expect(value, dict, what)
    _only(fields, ["frac", "start_s"], what)
    frac = _number(fields["frac"], f"{what}.frac")
    if not 0 < frac <= _MOST_FRAC:
        raise SpecError(f"{what}.frac is {frac!r}; expected a share above 0, {_MOST_FRAC} at most")
    return Speed(frac, _number(fields["start_s"], f"{what}.start_s"))


def _number(value: object, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise SpecError(f"{what} is {value!r}; expected a number, 0 or more")
    return float(value)  # type: ignore[arg-type]


def _only(fields: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raises SpecError if fields are missing or unknown."""
    for name in known:
        if name not in fields:
            raise SpecError(f"{what} lacks {name!r}")
    for name in fields:
        if name not in known:
            raise SpecError(
                f"{what} has {name!r}, which is not known; expected: {', '.join(known)}"
            )


def _expect(value: Any, kind: type[Any], what: str) -> Any:  # noqa: ANN401 - of any JSON
    if not isinstance(value, kind):
        raise SpecError(f"{what} is {value!r}; expected {kind.__name__}")
    return value
