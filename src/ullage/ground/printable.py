r"""Escapes text from files for safe display.

A frame, a file name or an exception may contain anything: an escape sequence that rewrites the
terminal, a line break that starts a command (`::error` is one to GitHub), a character that changes
the direction of the text, or a lone surrogate, which cannot be encoded.

    printable("train.py\x1b[2J")            # 'train.py\\x1b[2J'
    printable_lines("first\nsec\x07ond")    # 'first\nsec\\x07ond'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

# C0 and C1 controls and DEL, separators of lines, characters that change the direction of the text,
# lone surrogates, and the blocks of invisible tags.
_HOSTILE: Final = (
    "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f"
)
_PATTERN: Final = re.compile(f"[{_HOSTILE}]")
_PATTERN_BUT_LINES: Final = re.compile(f"(?!\n)[{_HOSTILE}]")
_NAME_CHARS: Final = 4096  # of a path of Linux
HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"(?is)(.*(?:api|access|private|secret)[-_]?key="
    r"|.*(?:secret|(?<!(?:pad|eos|bos|unk|sep|cls|max|num)[-_])token"
    r"|passw(?:or)?d|passphrase|credentials?|auth|bearer)=).*"
)
_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text in one line, with an escape such as `\\x1b` for each unprintable character."""
    return _PATTERN.sub(_escape, text)


def printable_name(text: str) -> str:
    """The same for a name; of one that is longer than any path, its beginning and its end."""
    if len(text) > _NAME_CHARS:
        text = f"{text[: _NAME_CHARS // 2]}...{text[-_NAME_CHARS // 2 :]}"
    return printable(text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines; line breaks stay."""
    return _PATTERN_BUT_LINES.sub(_escape, text)


def printable_values(value: Any) -> Any:  # noqa: ANN401 - plain values of any kind
    """Makes each string and each key in plain values printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(printable_values, value))
    return value


def hide_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line without values of what is called like a secret (`--api-key=...`,
    `--token ...`, `HF_TOKEN=...`) and without passwords in addresses.
    """
    hidden: list[str] = []
    is_value = False
    for word in words:
        match = _SECRET.fullmatch(word)
        if is_value and not word.startswith("-"):
            hidden.append(HIDDEN)
        else:
            hidden.append(_PASSWORD.sub(HIDDEN, f"{match[1]}{HIDDEN}" if match else word))
        is_value = word.startswith("-") and _SECRET.fullmatch(f"{word}=") is not None
    return tuple(hidden)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8, as Python reads it
        return f"\\x{number - 0xDC00:02x}"
    if character in _SHORT:
        return _SHORT[character]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
