"""Parses the text of a generator of traffic.

    parse_generators("poisson:rate=2,prompt=1000,output=200,duration=10m")
    parse_generators("azure-conv:duration=1h+documents:rate=0.02,duration=1h")

KIND:KEY=VALUE,... and several of them with + between. KINDS has each kind's keys and their
defaults; a key without a default must be given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from ullage.ground.errors import SpecError
from ullage.operate.serve.traffic.generators import Bursts, ClosedLoop, Lengths, Poisson, Sessions
from ullage.operate.serve.traffic.traffic import Traffic, concatenate

_Value: TypeAlias = str | None
_LENGTHS: Final = {
    "spread": "0", "prompt_spread": "", "output_spread": "", "most_prompt": "", "most_output": "",
    "seed": "0", "name": "",
}  # fmt: skip
_OPEN: Final = {"rate": None, "prompt": None, "output": None, "duration": "10m", **_LENGTHS}
# The published percentiles of the trace of 2023, by lognormal lengths: the median, and the spread
# that puts the 99th percentile where it is (ln(p99/p50) / 2.326). Arrivals are Poisson; the real
# ones come more in bursts. Source: Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv and
# AzureLLMInferenceTrace_code.csv.
_AZURE_CONV: Final = {
    "rate": "5.53", "prompt": "1020", "output": "129", "prompt_spread": "0.602",
    "output_spread": "0.661", "most_prompt": "14050", "most_output": "1000",
}  # fmt: skip
_AZURE_CODE: Final = {
    "rate": "2.57", "prompt": "1469", "output": "13", "prompt_spread": "0.697",
    "output_spread": "1.275", "most_prompt": "7437", "most_output": "1899",
}  # fmt: skip
KINDS: Final[Mapping[str, Mapping[str, _Value]]] = MappingProxyType(
    {
        "poisson": _OPEN,
        "bursts": {**_OPEN, "on": "10", "off": "50"},
        "sessions": {**_OPEN, "turns": "6", "think": "30", "system": "0"},
        "documents": {**_OPEN, "rate": "0.02", "prompt": "60000", "output": "500"},
        "azure-conv": {**_OPEN, **_AZURE_CONV},
        "azure-code": {**_OPEN, **_AZURE_CODE},
        "closed": {
            "users": None,
            "requests": None,
            "prompt": None,
            "output": None,
            "stagger": "0",
            "think": "",
            **_LENGTHS,
        },
    }
)
"""The generators, and their keys with defaults; None: the key must be given."""
_UNITS_S: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|)")
_MAX_NUMBER: Final = 1e9


def is_generator(text: str) -> bool:
    """True if a text begins with the name of a generator and a colon, or is one alone."""
    return text.partition("+")[0].partition(":")[0] in KINDS


def parse_generators(text: str) -> Traffic:
    """Generates the requests of one kind or several.

    Raises:
        SpecError: a kind or key is not known, a value is not one of its key, or a key is missing.
    """
    return concatenate([_parse(part.strip()) for part in text.split("+")], text)


def parse_duration(text: str) -> float:
    """Seconds of "500ms", "30s", "10m", "1h" or "30".

    Raises:
        SpecError: it is none of these, or 0.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if seconds <= 0:
        raise SpecError(f"{text!r} is not a time; expected such as 500ms, 30s, 10m or 1h")
    return seconds


def _parse(text: str) -> Traffic:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise SpecError(f"{kind!r} is not a kind of traffic; expected one of {', '.join(KINDS)}")
    defaults = KINDS[kind]
    values: dict[str, str] = {}
    for field in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in field.partition("="))
        if key not in defaults or not equals:
            raise SpecError(
                f"{text!r}: found {field!r}; expected KEY=VALUE of {', '.join(defaults)}"
            )
        values[key] = value
    missing = [key for key, value in defaults.items() if value is None and key not in values]
    if missing:
        raise SpecError(f"{text!r} has no {missing[0]}; add {missing[0]}=VALUE")
    return _generate(text, kind, _Fields(text, {k: v or "" for k, v in defaults.items()} | values))


class _Fields:
    def __init__(self, text: str, values: Mapping[str, str]) -> None:
        self._text, self._values = text, values

    def text(self, key: str) -> str:
        """As it stands."""
        return self._values[key]

    def number(self, key: str, low: float = 0.0, *, is_open: bool = False) -> float:
        """A number of `low` or more; above it, if the bound is open."""
        try:
            value = float(self._values[key])
        except ValueError:
            value = -1.0
        if not low <= value <= _MAX_NUMBER or (is_open and value == low):
            above = "above" if is_open else "at least"
            raise SpecError(
                f"{self._text!r}: {key} is {self._values[key]!r}; expected a number {above} {low:g}"
            )
        return value

    def whole(self, key: str, low: int = 1) -> int:
        """A whole number of `low` or more."""
        value = self.number(key, low)
        if value != int(value):
            raise SpecError(f"{self._text!r}: {key} is {value:g}; expected a whole number")
        return int(value)

    def seconds(self, key: str) -> float:
        """A duration."""
        try:
            return parse_duration(self._values[key])
        except SpecError as error:
            raise SpecError(f"{self._text!r}: {key}: {error}") from None

    def lengths(self) -> Lengths:
        """The lengths of prompts and answers."""
        spreads = [
            self.number(key if self._values[key] else "spread")
            for key in ("prompt_spread", "output_spread")
        ]
        most = [
            self.whole(key) if self._values[key] else None for key in ("most_prompt", "most_output")
        ]
        return Lengths(
            self.whole("prompt"), self.whole("output"), spreads[0], spreads[1], most[0], most[1]
        )


def _generate(text: str, kind: str, fields: _Fields) -> Traffic:
    lengths, seed = fields.lengths(), fields.whole("seed", 0)
    name = fields.text("name") or kind
    if kind == "closed":
        users, requests = fields.whole("users"), fields.whole("requests")
        is_staggered = fields.whole("stagger", 0) > 0
        think_s = fields.seconds("think") if fields.text("think") else 0.0
        loop = ClosedLoop(users, requests, lengths, is_staggered, seed, name, think_s)
        return loop.traffic(text)
    rate, duration_s = fields.number("rate", is_open=True), fields.seconds("duration")
    if kind == "bursts":
        on_s, off_s = fields.seconds("on"), fields.seconds("off")
        return Bursts(rate, duration_s, on_s, off_s, lengths, seed, name).traffic(text)
    if kind == "sessions":
        turns, think_s = fields.whole("turns"), fields.seconds("think")
        system = fields.whole("system", 0)
        sessions = Sessions(rate, duration_s, turns, think_s, lengths, system, seed, name)
        return sessions.traffic(text)
    return Poisson(rate, duration_s, lengths, seed, name).traffic(text)
