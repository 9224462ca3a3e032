"""The kind of a file that is not a memory snapshot, by its first bytes, and what to do with it."""

from __future__ import annotations

NUM_BYTES = 8

_PACKED = "expected a memory snapshot that is not packed; unpack it first, with `{command} FILE`"
_SNAPSHOT = "expected what torch.cuda.memory._dump_snapshot wrote"
# No pickle begins like any of these.
_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed with gzip", _PACKED.format(command="gunzip")),
    (b"\xfd7zXZ", "compressed with xz", _PACKED.format(command="unxz")),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", _PACKED.format(command="unzstd")),
    (b"BZh", "compressed with bzip2", _PACKED.format(command="bunzip2")),
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save writes them",
        f"{_SNAPSHOT}; if that is in it, unpack it first, with `unzip FILE`",
    ),
    (b"<", "HTML or XML", f"{_SNAPSHOT}, not a page that was made of it"),
    (b"{", "JSON", f"{_SNAPSHOT}, which is a pickle"),
    (b"\x7fELF", "a program or library", _SNAPSHOT),
    (b"SQLite f", "an SQLite database", _SNAPSHOT),
)


def describe_text(first_bytes: bytes, problem: str) -> str:
    """Describes a file that is not a pickle, or an incomplete one, if it is a text."""
    letters = "".join(first_bytes.decode(errors="ignore").split())
    is_old_pickle = first_bytes.startswith((b"]", b"}", b"(d", b"(l"))
    is_text = letters != "" and letters.isprintable() and not is_old_pickle
    if is_text and any(words in problem for words in ("not a pickle", "cut off", "damaged")):
        return f"it is text; {_SNAPSHOT}: run the program with `ullage record -- PROGRAM`"
    return problem


def describe_format(first_bytes: bytes) -> str | None:
    """Describes a file and what to do, as a sentence's end; None where it may be a pickle."""
    for magic, name, remedy in _FORMATS:
        if first_bytes.startswith(magic):
            return f"it is {name}; {remedy}"
    return None
