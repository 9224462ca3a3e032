"""Reads the body of a request for a completion: which model, how many tokens, what it begins with.

    order = read_order(body, limits)
    order.prompt_tokens, order.max_tokens, order.prefix

A body is read strictly and written anew before it is sent on, so that an engine's parser cannot see
another request than this one. What would let a client reach through the engine is refused:
addresses that it would fetch, files that it would load, its own place in the engine's queue.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ullage.doors.refusal import Refusal
from ullage.front.policy.request import PREFIX_TOKENS
from ullage.parsing import parse_json, show_value

_FORBIDDEN: Final = (
    "kv_transfer_params", "priority", "prompt_embeds", "chat_template", "lora_path",
    "mm_processor_kwargs", "media_io_kwargs", "data_parallel_rank", "request_id", "documents",
)  # fmt: skip
_MEDIA: Final = ("image_url", "video_url", "audio_url", "input_audio", "input_image", "file")
_MESSAGE_TOKENS: Final = 8  # what a chat template writes around a message
_MAX_SEQUENCES: Final = 16
_COUNTED: Final = ("tools", "functions", "response_format")
_BOUNDS: Final = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a body is held against.

    Attributes:
        models: that some engine serves.
        default_tokens: of an answer whose request does not say.
        max_tokens: that the tenant may ask for; None: any.
        media_tokens: bound of an image or a sound, by model; a model without one takes none.
        count: tokens of a text, or an upper bound, for a model.
        characters_per_token: for the prefix's hashes.
        choose: the model that serves a request for a model: one of its versions, or itself.
    """

    models: frozenset[str]
    default_tokens: int
    max_tokens: int | None
    media_tokens: Mapping[str, int]
    count: Callable[[str, str], int]
    characters_per_token: float
    choose: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Order:
    """A request for a completion; `fields` is what is sent on."""

    model: str
    fields: Mapping[str, Any]
    prompt_tokens: int
    max_tokens: int
    sequences: int
    prefix: tuple[int, ...]
    is_streamed: bool
    num_trimmed: int = 0

    @property
    def body(self) -> bytes:
        """What is sent to the engine."""
        return json.dumps(self.fields, separators=(",", ":")).encode()


def read_fields(
    body: bytes, limits: Limits, *, allowed: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """The fields of a body, and the model that serves it.

    Args:
        body: of the request.
        limits: that it is held against.
        allowed: fields that are taken here, and nowhere else.

    Raises:
        Refusal: it is no JSON object, reaches into the engine, or names no model.
    """
    try:
        fields = parse_json(body)
    except (ValueError, UnicodeDecodeError):
        # Not the parser's own words: they may quote the body.
        raise Refusal(400, "the body is not JSON, or nests too deep") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "the body is not a JSON object")
    forbidden = [
        name for name in _FORBIDDEN if name not in allowed and fields.get(name) is not None
    ]
    if forbidden:
        raise Refusal(400, f"the field {forbidden[0]!r} is not taken here")
    model = fields.get("model")
    if not isinstance(model, str) or model not in limits.models:
        known = ", ".join(sorted(limits.models))
        raise Refusal(404, f"model is {show_value(model)}; expected one of {known}")
    return fields, limits.choose(model)


def read_order(body: bytes, limits: Limits, *, is_chat: bool) -> Order:
    """Reads a body.

    Raises:
        Refusal: it is not one that can be served.
    """
    fields, model = read_fields(body, limits)
    prompts = [_read_messages(fields, limits, model)] if is_chat else _read_prompts(fields)
    name, bound = _read_bound(fields, limits)
    copies = max(_whole(fields, "n", 1), _whole(fields, "best_of", 1))
    sequences = copies * len(prompts)
    if sequences > _MAX_SEQUENCES:
        raise Refusal(400, f"{sequences} answers are asked for; expected {_MAX_SEQUENCES} or fewer")
    tokens = sum(_count(prompt, limits, model) for prompt in prompts)
    return Order(
        model=model,
        fields={**fields, "model": model, name: bound},
        prompt_tokens=tokens,
        max_tokens=bound,
        sequences=sequences,
        prefix=_prefix(prompts[0], limits.characters_per_token),
        is_streamed=_switch(fields, "stream"),
    )


def trim_oldest(order: Order, limits: Limits, fits: Callable[[Order], bool]) -> Order:
    """Leaves out the oldest messages, but for the system's and the last, until the order fits; the
    order as it is where that does not suffice.
    """
    messages = order.fields.get("messages")
    if not isinstance(messages, list):
        return order
    oldest = [
        number
        for number, message in enumerate(messages[:-1])
        if message.get("role") not in ("system", "developer")
    ]

    def trim(count: int) -> Order:
        dropped = {*oldest[:count]}
        rest = [message for number, message in enumerate(messages) if number not in dropped]
        fields = {**order.fields, "messages": rest}
        prompt = _read_messages(fields, limits, order.model)
        tokens = _count(prompt, limits, order.model)
        prefix = _prefix(prompt, limits.characters_per_token)
        return replace(order, fields=fields, prompt_tokens=tokens, prefix=prefix, num_trimmed=count)

    # Bisection: a prompt of thousands of messages is not counted thousands of times.
    counts = range(len(oldest) + 1)
    fewest = bisect_left(counts, 1, key=lambda count: int(fits(trim(count))))
    return trim(fewest) if fewest < len(counts) else order


@dataclass(frozen=True, slots=True)
class _Text:
    """What of a prompt is counted: its text, tokens that are given as numbers, and all else."""

    text: str
    num_tokens: int = 0


def _count(prompt: _Text, limits: Limits, model: str) -> int:
    return max(1, limits.count(model, prompt.text) + prompt.num_tokens)


def _read_messages(fields: Mapping[str, Any], limits: Limits, model: str) -> _Text:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages is missing, or is no list of messages")
    parts = [json.dumps(fields[name]) for name in _COUNTED if fields.get(name) is not None]
    extra = _MESSAGE_TOKENS * (len(messages) + 2)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refusal(400, "messages has one without a role; expected objects with a role")
        content = message.get("content")
        parts.append(message["role"])
        extra += _read_content(content, parts, limits.media_tokens.get(model))
        rest = {key: value for key, value in message.items() if key not in ("role", "content")}
        if rest:
            parts.append(json.dumps(rest))
    return _Text("\n".join(parts), extra)


def _read_content(content: object, parts: list[str], media_tokens: int | None) -> int:
    """Adds the text of a message's content to `parts`; the tokens of what is no text."""
    if content is None:
        return 0
    if isinstance(content, str):
        parts.append(content)
        return 0
    if not isinstance(content, list):
        raise Refusal(400, "a message's content is neither a text nor a list of parts")
    tokens = 0
    for part in content:
        if not isinstance(part, dict):
            raise Refusal(400, "a message's content has a part that is no object")
        if any(name in part for name in _MEDIA):
            tokens += _read_media(part, media_tokens)
        elif isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            raise Refusal(400, f"a part of the kind {show_value(part.get('type'))} is not taken")
    return tokens


def _read_media(part: Mapping[str, Any], media_tokens: int | None) -> int:
    """Accepts an image or a sound that the request itself brings; its bound in tokens."""
    for name in _MEDIA:
        value = part.get(name)
        url = value.get("url", "data:") if isinstance(value, dict) else value
        if value is not None and not (isinstance(url, str) and url[:5].lower() == "data:"):
            raise Refusal(400, f"{name} has an address that would be fetched; send the data itself")
    if media_tokens is None:
        raise Refusal(400, "no engine of this model says how many tokens an image takes")
    return media_tokens


def _read_prompts(fields: Mapping[str, Any]) -> list[_Text]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [_Text(prompt, 1)]
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int for token in prompt):
            return [_Text("", len(prompt) + 1)]
        if all(isinstance(text, str) for text in prompt):
            return [_Text(text, 1) for text in prompt]
    raise Refusal(400, "prompt is neither a text, nor a list of texts, nor a list of tokens")


def _read_bound(fields: Mapping[str, Any], limits: Limits) -> tuple[str, int]:
    """The name and the value of the bound on an answer's tokens."""
    names = [name for name in _BOUNDS if fields.get(name) is not None]
    most = limits.max_tokens
    if not names:
        return _BOUNDS[1], limits.default_tokens if most is None else min(
            most, limits.default_tokens
        )
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


def _switch(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} is {show_value(value)}; expected true or false")
    return value


def _prefix(prompt: _Text, characters_per_token: float) -> tuple[int, ...]:
    """Hashes of the beginning of a text, each of all up to the end of its piece."""
    size = max(1, math.floor(PREFIX_TOKENS * characters_per_token))
    pieces: Sequence[str] = [
        prompt.text[end - size : end] for end in range(size, len(prompt.text) + 1, size)
    ]
    hashes: list[int] = []
    for piece in pieces:
        hashes.append(hash((hashes[-1] if hashes else 0, piece)))
    return tuple(hashes)
