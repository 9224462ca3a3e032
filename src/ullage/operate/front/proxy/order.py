"""Reads the body of a request: which model, how many tokens, what it begins with.

    order = reader.read(body, "/v1/chat/completions", "chat", fits, number=1, now_s=0)
    order.request.prompt_tokens, order.body

A body is read strictly and written anew before it is sent on, so that an engine's parser cannot see
another request than this one. Bytes are all that is kept of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.parsing import check_values, show_value
from ullage.operate.doors.refusal import Refusal
from ullage.operate.front.policy.request import PREFIX_TOKENS, Request
from ullage.operate.front.policy.versions import Versions
from ullage.operate.front.proxy.fields import CHAT, COMPLETIONS, Use, read_fields
from ullage.operate.front.proxy.prompt import read_prompts
from ullage.operate.front.settings import FrontSettings

_MAX_SEQUENCES: Final = 16
_MAX_INPUTS: Final = 2048  # of an encoder
_MAX_VALUES: Final = 2**18  # some 30 MB of objects
_BOUNDS: Final = ("max_completion_tokens", "max_tokens")


class Order(NamedTuple):
    """A request, and the body that is sent on for it."""

    request: Request
    body: bytes
    num_trimmed: int = 0


class OrderReader:
    """Reads bodies."""

    def __init__(self, settings: FrontSettings, versions: Versions) -> None:
        self._settings, self._choose = settings, versions.choose
        served = [(name, each) for each in settings.engines.values() for name in each.spec.models]
        self.models = versions.models.union(name for name, _ in served)
        self._media_tokens = {name: each.media_tokens for name, each in served if each.media_tokens}
        tokenizers = {name: each.tokenizer for name, each in served if each.tokenizer}
        self._count = make_counter(tokenizers, settings.characters_per_token)
        self._fields = {name: Use(use) for name, use in settings.fields.items()}

    def read(
        self, body: bytes, path: str, tenant: str, fits: Callable[[Request], bool],
        *, number: int, now_s: float,
    ) -> Order:  # fmt: skip
        """Reads a body.

        Args:
            body: of the request.
            path: that it was sent to.
            tenant: whose it is.
            fits: a cache; where it does not, the oldest messages may be left out.
            number: of the request.
            now_s: the time.

        Raises:
            Refusal: it is not one that can be served.
        """
        limits = self._settings.tenants[tenant]
        deadline_s = None if limits.deadline_s is None else now_s + limits.deadline_s
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
            request = Request(
                number, tenant, model, max(1, tokens), bound, now_s, deadline_s, sequences, prefix,
                bool(is_streamed),
            )  # fmt: skip
            return Order(request, b"", num_trimmed)

        order = make(fields, 0)
        if limits.trim != "never" and path == CHAT and not fits(order.request):
            order, fields = _trim_oldest(order, fields, make, fits)
        # A copy: what orjson returns keeps many times its bytes where there are many values.
        return order._replace(body=bytes(memoryview(orjson.dumps(fields))))


def _parse(body: bytes) -> dict[str, Any]:
    if _has_many_values(body):
        raise Refusal(
            400, f"the body has more than {_MAX_VALUES} values; send a text in place of its tokens"
        )
    try:
        fields = orjson.loads(body)
        check_values(fields)
    except ValueError:
        # Not the parser's own words: they may quote the body.
        raise Refusal(400, "the body is not JSON, or nests too deep") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "the body is not a JSON object")
    return fields


def _has_many_values(body: bytes) -> bool:
    """True if more objects would be made than are taken. A value stands behind a comma, or behind
    what opens a list or an object; such signs in a text are not values.
    """
    # Many short calls in place of one: other threads run between them.
    if len(body) <= _MAX_VALUES or sum(body.count(sign) for sign in b",[{") <= _MAX_VALUES:
        return False
    # Without escapes, each quotation mark begins or ends a text.
    rest = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    total = num_texts = end = 0
    while total <= _MAX_VALUES and num_texts <= 2 * _MAX_VALUES:  # more texts than signs: no JSON
        begin = rest.find(b'"', end)
        gap = rest[end : begin if begin >= 0 else None]
        total += gap.count(b",") + gap.count(b"[") + gap.count(b"{")
        end = rest.find(b'"', begin + 1) + 1
        if begin < 0 or not end:
            return total > _MAX_VALUES
        num_texts += 1
    return True


def _trim_oldest(
    order: Order, fields: dict[str, Any], make: Callable[[Mapping[str, Any], int], Order],
    fits: Callable[[Request], bool],
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
    fewest = bisect_left(counts, 1, key=lambda count: int(fits(make(trim(count), count).request)))
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


def make_counter(
    files: Mapping[str, Path], characters_per_token: float
) -> Callable[[str, str], int]:
    """A function of a model and a text.

    Args:
        files: of tokenizers, by model.
        characters_per_token: of a model without one.

    Raises:
        EnvironmentProblem: the library tokenizers is not installed, and a file is given.
        SpecError: a file is not a tokenizer's.
    """
    tokenizers = {model: _open(path) for model, path in files.items()}

    def count(model: str, text: str) -> int:
        tokenizer = tokenizers.get(model)
        if tokenizer is None:
            # In bytes, as a character of Chinese or an emoji can be a token or more by itself.
            return math.ceil(len(text.encode("utf-8", "surrogatepass")) / characters_per_token)
        return len(tokenizer.encode(text))

    return count


def _open(path: Path) -> Any:  # noqa: ANN401 - of a library that is not always there
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "a tokenizer is configured, and the library tokenizers is not installed; "
            "install it with: pip install tokenizers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises is an Exception and no more
        raise SpecError(f"the tokenizer {str(path)!r} cannot be read: {error}") from None
