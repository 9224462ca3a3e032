"""Reads what is computed of a request: messages, prompts, inputs of an encoder.

    read_prompts(fields, "/v1/completions", media_tokens=None)      # [Prompt("Once", 1)]

Each of them is a sequence of its own. A part of a message has a type, which says where its text,
image or sound is; a part that has more is refused, as another program may read the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ullage.ground.parsing import show_value
from ullage.operate.doors.refusal import Refusal
from ullage.operate.front.proxy.fields import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, write_text

_TEXTS: Final = {
    "text": "text", "input_text": "text", "output_text": "text", "reasoning": "text",
    "refusal": "refusal", "thinking": "thinking",
}  # fmt: skip
_MEDIA: Final = {
    "image_url": "image_url", "video_url": "video_url", "audio_url": "audio_url",
    "input_image": "image_url", "input_audio": "input_audio",
}  # fmt: skip
_IN_MEDIA: Final = {"url", "detail", "data", "format"}
_COUNTED: Final = {
    "name", "tool_calls", "tool_call_id", "function_call", "refusal", "reasoning", "thinking",
    "reasoning_content", "prefix", "tools",
}  # fmt: skip
_MESSAGE_TOKENS: Final = 8  # what a chat template writes around a message
_PAIR_TOKENS: Final = 4  # what is written around the texts of an encoder


class Prompt(NamedTuple):
    """A text, and the tokens that stand in none."""

    text: str
    num_tokens: int


def read_prompts(fields: Mapping[str, Any], path: str, media_tokens: int | None) -> list[Prompt]:
    """Reads the prompts that are computed.

    Args:
        fields: of a body.
        path: that it was sent to.
        media_tokens: bound of an image or a sound; None: they are refused.

    Raises:
        Refusal: it is missing, or is not what the path takes.
    """
    if path == CHAT:
        return [_read_messages(fields.get("messages"), media_tokens)]
    if path == COMPLETIONS:
        return _read_texts(fields, "prompt", 1)
    if path == EMBEDDINGS:
        return _read_texts(fields, "input", _PAIR_TOKENS)
    is_rerank = path == RERANK
    names = ("query", "documents") if is_rerank else ("text_1", "text_2")
    first, second = (_texts(fields.get(name)) for name in names)
    is_pair = len(first) == 1 or (len(first) == len(second) and not is_rerank)
    if not first or not second or not is_pair:
        raise Refusal(
            400, f"{names[0]} and {names[1]} are not a text and texts, nor as many of both"
        )
    firsts = first * len(second) if len(first) == 1 else first
    return [Prompt(a + b, _PAIR_TOKENS) for a, b in zip(firsts, second, strict=True)]


def _read_texts(fields: Mapping[str, Any], name: str, extra: int) -> list[Prompt]:
    """A text or the numbers of its tokens, or a list of those."""
    given = fields.get(name)
    is_one = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and type(given[0]) is int
    )
    prompts = []
    for each in [given] if is_one else given if isinstance(given, list) else []:
        if isinstance(each, str):
            prompts.append(Prompt(each, extra))
        elif isinstance(each, list) and each and all(type(token) is int for token in each):
            prompts.append(Prompt("", len(each) + extra))
        else:
            prompts.clear()
            break
    if not prompts:
        raise Refusal(
            400, f"{name} is neither a text, nor a list of tokens, nor a list of either of them"
        )
    return prompts


def _texts(given: object) -> list[str]:
    """A text, or a list of texts; empty where it is neither."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return given
    return []


def _read_messages(messages: object, media_tokens: int | None) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages is missing, or is not a list of messages")
    texts: list[str] = []
    tokens = _MESSAGE_TOKENS * (len(messages) + 2)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refusal(400, "messages has one without a role; expected objects with a role")
        for name, value in message.items():
            if name == "content":
                tokens += _read_content(value, texts, media_tokens)
            elif name == "role" or name in _COUNTED:
                texts.append(write_text(value))
            else:
                raise Refusal(400, f"messages has one with the field {name[:100]!r}; leave it out")
    return Prompt("\n".join(texts), tokens)


def _read_content(content: object, texts: list[str], media_tokens: int | None) -> int:
    if isinstance(content, str):
        texts.append(content)
    elif content is not None and not isinstance(content, list):
        raise Refusal(400, "a message's content is neither a text nor a list of parts")
    tokens = 0
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        name = _TEXTS.get(kind) or _MEDIA.get(kind) if isinstance(kind, str) else None
        if name is None:
            raise Refusal(400, f"a message has a part of the type {show_value(kind)}; expected "
                          f"one of {', '.join((*_TEXTS, *_MEDIA))}")  # fmt: skip
        more = part.keys() - {"type", name}
        if more:
            raise Refusal(400, f"a part of the type {kind!r} has the field {min(more)[:100]!r}; "
                          f"expected {name!r} and no other")  # fmt: skip
        payload = part.get(name)
        if kind in _MEDIA:
            tokens += _read_media(name, payload, media_tokens)
        elif isinstance(payload, str):
            texts.append(payload)
        else:
            raise Refusal(400, f"{name} of a part is {show_value(payload)}; expected a text")
    return tokens


def _read_media(name: str, payload: object, media_tokens: int | None) -> int:
    """Accepts an image or a sound that the request itself brings; its bound in tokens."""
    inside: dict[str, Any] = payload if isinstance(payload, dict) else {"url": payload}
    if not (inside.keys() <= _IN_MEDIA and all(isinstance(each, str) for each in inside.values())):
        raise Refusal(400, f"{name} holds more than data, or is none; expected texts named "
                      f"{', '.join(sorted(_IN_MEDIA))}")  # fmt: skip
    if name != "input_audio" and inside.get("url", "")[:5].lower() != "data:":
        raise Refusal(400, f"{name} has an address that would be fetched; send the data itself")
    if media_tokens is None:
        raise Refusal(400, "no engine of this model says how many tokens an image takes")
    return media_tokens
