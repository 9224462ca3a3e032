"""Reads the body of a request: which model, how many tokens, what it begins with.

    order = reader.read(body, "/v1/chat/completions", "chat", fits)
    order.prompt_tokens, order.max_tokens, order.prefix

A body is read strictly and written anew before it is sent on, so that an engine's parser cannot see
another request than this one. Bytes are all that is kept of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from ullage.doors.refusal import Refusal
from ullage.front.policy.request import PREFIX_TOKENS
from ullage.front.policy.versions import Versions
from ullage.front.proxy.fields import CHAT, COMPLETIONS, Use, read_fields
from ullage.front.proxy.prompt import read_prompts
from ullage.front.settings import FrontSettings
from ullage.parsing import check_values, show_value

_MAX_SEQUENCES: Final = 16
_MAX_INPUTS: Final = 2048  # of an encoder
_BOUNDS: Final = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Order:
    """A request; `body` is what is sent on."""

    model: str
    body: bytes
    prompt_tokens: int
    max_tokens: int
    sequences: int
    prefix: tuple[int, ...]
    is_streamed: bool
    num_trimmed: int = 0


class OrderReader:
    """Reads bodies; `count` gives the tokens of a text, or an upper bound, for a model."""

    def __init__(
        self, settings: FrontSettings, versions: Versions, count: Callable[[str, str], int]
    ) -> None:
        self._settings, self._choose, self._count = settings, versions.choose, count
        self.models = versions.models.union(
            model for each in settings.engines.values() for model in each.spec.models
        )
        self._media_tokens = {
            model: each.media_tokens
            for each in settings.engines.values()
            if each.media_tokens is not None
            for model in each.spec.models
        }
        self._fields = {name: Use(use) for name, use in settings.fields.items()}

    def read(self, body: bytes, path: str, tenant: str, fits: Callable[[Order], bool]) -> Order:
        """Reads a body.

        Args:
            body: of the request.
            path: that it was sent to.
            tenant: whose it is.
            fits: whether it fits a cache; where it does not, and the tenant allows that, the oldest
                messages are left out.

        Raises:
            Refusal: it is not one that can be served.
        """
        limits = self._settings.tenants[tenant]
        fields = _parse(body)
        counted = read_fields(fields, path, self._fields)
        name = fields.get("model")
        if not isinstance(name, str) or name not in self.models:
            known = ", ".join(sorted(self.models))
            raise Refusal(404, f"model is {show_value(name)}; expected one of {known}")
        fields["model"] = model = self._choose(name)
        bound, copies, most = 0, 1, _MAX_INPUTS  # an encoder has no answer in tokens
        if path in (CHAT, COMPLETIONS):
            bound_name, bound = _read_bound(fields, self._settings.max_tokens, limits.max_tokens)
            fields[bound_name] = bound
            copies = max(_whole(fields, "n", 1), _whole(fields, "best_of", 1))
            most = _MAX_SEQUENCES
        is_streamed = fields.get("stream")
        if is_streamed not in (None, False, bool(bound)):
            expected = "true or false" if bound else "false: an encoder has nothing to stream"
            raise Refusal(400, f"stream is {show_value(is_streamed)}; expected {expected}")

        def make(fields: Mapping[str, Any], num_trimmed: int) -> Order:
            prompts = read_prompts(fields, path, self._media_tokens.get(model))
            sequences = copies * len(prompts)
            if sequences > most:
                raise Refusal(400, f"{sequences} sequences are asked for; expected {most} or fewer")
            texts = [f"{counted}\n{each.text}" if counted else each.text for each in prompts]
            tokens = sum(self._count(model, text) for text in texts)
            tokens += sum(prompt.num_tokens for prompt in prompts)
            prefix = _prefix(texts[0], self._settings.characters_per_token) if bound else ()
            return Order(
                model, b"", max(1, tokens), bound, sequences, prefix, bool(is_streamed), num_trimmed
            )

        order = make(fields, 0)
        if limits.is_trimmed and path == CHAT and not fits(order):
            order, fields = _trim_oldest(order, fields, make, fits)
        return replace(order, body=orjson.dumps(fields))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
        check_values(fields)
    except ValueError:
        # Not the parser's own words: they may quote the body.
        raise Refusal(400, "the body is not JSON, or nests too deep") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "the body is not a JSON object")
    return fields


def _trim_oldest(
    order: Order, fields: dict[str, Any], make: Callable[[Mapping[str, Any], int], Order],
    fits: Callable[[Order], bool],
) -> tuple[Order, dict[str, Any]]:  # fmt: skip
    """Leaves out the oldest messages, but for the system's and the last, until the order fits; the
    order as it is where that does not suffice.
    """
    messages = fields["messages"]
    oldest = [
        number
        for number, message in enumerate(messages[:-1])
        if message["role"] not in ("system", "developer")
    ]

    def trim(count: int) -> dict[str, Any]:
        dropped = {*oldest[:count]}
        rest = [message for number, message in enumerate(messages) if number not in dropped]
        return {**fields, "messages": rest}

    # Bisection: a prompt of thousands of messages is not counted thousands of times.
    counts = range(len(oldest) + 1)
    fewest = bisect_left(counts, 1, key=lambda count: int(fits(make(trim(count), count))))
    if fewest == len(counts):
        return order, fields
    return make(trim(fewest), fewest), trim(fewest)


def _read_bound(fields: Mapping[str, Any], default: int, most: int | None) -> tuple[str, int]:
    """The name and the value of the bound on an answer's tokens."""
    names = [name for name in _BOUNDS if fields.get(name) is not None]
    if not names:
        return _BOUNDS[1], default if most is None else min(most, default)
    if len(names) > 1 and fields[names[0]] != fields[names[1]]:
        raise Refusal(400, f"{names[0]} and {names[1]} differ; give one of them")
    bound = _whole(fields, names[0], 1)
    if most is not None and bound > most:
        raise Refusal(400, f"{names[0]} is {bound}; this tenant's answers have {most} at most")
    return names[0], bound


def _whole(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= 2**31:
        raise Refusal(400, f"{name} is {show_value(value)}; expected a whole number from 1 on")
    return value


def _prefix(text: str, characters_per_token: float) -> tuple[int, ...]:
    """Hashes of the beginning of a text, each of all up to the end of its piece."""
    size = max(1, math.floor(PREFIX_TOKENS * characters_per_token))
    hashes: list[int] = []
    for end in range(size, len(text) + 1, size):
        hashes.append(hash((hashes[-1] if hashes else 0, text[end - size : end])))
    return tuple(hashes)
