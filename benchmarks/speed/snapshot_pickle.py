"""Writes a made-up snapshot as Python's own pickler would: protocol 4, every dictionary and list
memoized, and in each event a list of its own that refers to shared frames. It is written opcode by
opcode, so that a file of a gigabyte needs no gigabyte of objects.
"""

import struct
from typing import BinaryIO, NamedTuple

from benchmarks.speed.allocator import ACTIONS, MIB, Allocator, Block, Trace

_FIRST_TIME_US = 1_700_000_000_000_000
_FRAME_BYTES = 64 * 1024  # of the pickle, as Python's own pickler cuts them


class Frame(NamedTuple):
    """A place in code."""

    name: str
    filename: str
    line: int


class Pickler:
    """Writes protocol 4, and counts what is memoized."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._parts, self._num_bytes = file, [], 0
        self._memo: dict[object, int] = {}
        self._num_memoized = 0
        file.write(b"\x80\x04")

    def write(self, *parts: bytes) -> None:
        """Adds opcodes to the current frame."""
        self._parts += parts
        self._num_bytes += sum(map(len, parts))
        if self._num_bytes >= _FRAME_BYTES:
            self.flush()

    def flush(self) -> None:
        """Ends the current frame."""
        self._file.write(b"\x95" + struct.pack("<Q", self._num_bytes))
        self._file.writelines(self._parts)
        self._parts, self._num_bytes = [], 0

    def memoize(self, key: object = None, *, count: int = 1) -> None:
        """Numbers what was just put down; its opcode is part of what was written."""
        if key is not None:
            self._memo[key] = self._num_memoized
        self._num_memoized += count

    def get(self, key: object) -> bytes | None:
        """The opcode that brings back what was memoized; None where it was not."""
        number = self._memo.get(key)
        if number is None:
            return None
        return b"h%c" % number if number < 256 else b"j" + struct.pack("<I", number)

    def text(self, text: str) -> bytes:
        """A string, or what brings it back."""
        found = self.get(text)
        if found is None:
            encoded = text.encode()
            found = b"\x8c%c" % len(encoded) + encoded + b"\x94"
            self.memoize(text)
        return found


def number_opcode(number: int) -> bytes:
    """An integer as Python's pickler writes it."""
    if 0 <= number < 256:
        return b"K%c" % number
    if -(2**31) <= number < 2**31:
        return b"J" + struct.pack("<i", number)
    encoded = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a%c" % len(encoded) + encoded


class SnapshotWriter:
    """Writes a simulated allocator as torch would dump it."""

    def __init__(self, file: BinaryIO, stacks: list[list[Frame]]) -> None:
        self._out, self._stacks = Pickler(file), [*stacks, []]  # the last, -1, is empty
        self._known: dict[int, bytes] = {}
        self._sizes: dict[int, bytes] = {}

    def write(self, allocator: Allocator) -> None:
        """The whole file."""
        out = self._out
        out.write(b"}\x94(")
        out.memoize()
        out.write(out.text("segments"), b"]\x94(")
        out.memoize()
        for address, block in allocator.first_blocks.items():
            self._segment(allocator.segment_sizes[address], block)
        out.write(b"e", out.text("device_traces"), b"]\x94]\x94(")
        out.memoize(count=2)
        self._events(allocator.trace)
        out.write(b"ea", out.text("allocator_settings"), b"}\x94(")
        out.memoize()
        out.write(out.text("max_split_size"), number_opcode(-1))
        out.write(out.text("expandable_segments"), b"\x89u")
        out.write(out.text("external_annotations"), b"]\x94u.")
        out.memoize()
        out.flush()

    def _segment(self, total: int, block: Block | None) -> None:
        out, first = self._out, block
        blocks = []
        while block is not None:
            blocks.append(block)
            block = block.after
        live = sum(one.size for one in blocks if one.is_live)
        requested = sum(one.requested for one in blocks)
        out.write(b"}\x94(")
        out.memoize()
        for key, number in (
            ("device", 0), ("address", first.address if first else 0), ("total_size", total),
            ("allocated_size", live), ("active_size", live), ("requested_size", requested),
            ("stream", 0),
        ):  # fmt: skip
            out.write(out.text(key), number_opcode(number))
        kind = "small" if total == 2 * MIB else "large"
        out.write(out.text("segment_type"), out.text(kind))
        out.write(out.text("is_expandable"), b"\x89", out.text("blocks"), b"]\x94(")
        out.memoize()
        for one in blocks:
            self._block(one)
        out.write(b"eu")

    def _block(self, block: Block) -> None:
        out = self._out
        out.write(b"}\x94(")
        out.memoize()
        for key, number in (
            ("address", block.address), ("size", block.size), ("requested_size", block.requested)
        ):  # fmt: skip
            out.write(out.text(key), number_opcode(number))
        state = "active_allocated" if block.is_live else "inactive"
        out.write(out.text("state"), out.text(state))
        key = out.text("frames")
        out.write(key, self._frames(block.stack), b"u")

    def _events(self, trace: Trace) -> None:
        out, time_us, noise = self._out, _FIRST_TIME_US, 1
        keys_of: dict[int, tuple[bytes, bytes, bytes, bytes]] = {}
        columns = zip(trace.action, trace.address, trace.size, trace.stack, strict=True)
        for action, address, size, stack in columns:
            noise = (noise * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            time_us += 2 + (noise >> 16) % 60
            out.memoize()
            keys = keys_of.get(action)
            if keys is None:
                keys = self._event_keys(action)
                keys_of[action] = self._event_keys(action)  # now they bring the texts back
            out.write(
                b"".join(
                    (
                        keys[0], number_opcode(address), keys[1], self._size(size),
                        keys[2], number_opcode(time_us), keys[3], self._frames(stack), b"u",
                    )
                )
            )  # fmt: skip

    def _event_keys(self, action: int) -> tuple[bytes, bytes, bytes, bytes]:
        """What stands between the numbers of an event."""
        text = self._out.text
        return (
            b"}\x94(" + text("action") + text(ACTIONS[action]) + text("addr"),
            text("size"),
            text("stream") + b"K\x00" + text("time_us"),
            text("compile_context")
            + text("N/A")
            + text("user_metadata")
            + text("")
            + text("frames"),
        )

    def _size(self, size: int) -> bytes:
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes[size] = number_opcode(size)
        return found

    def _frames(self, stack: int) -> bytes:
        """A list of its own that refers to shared frames; the first time it brings the frames."""
        out, known = self._out, self._known.get(stack)
        out.memoize()  # the list
        if known is not None:
            return known
        frames = self._stacks[stack]
        if not frames:
            return self._known.setdefault(stack, b"]\x94")
        parts = [out.get(frame) or self._new_frame(frame) for frame in frames]
        gets = [out.get(frame) or b"" for frame in frames]
        self._known[stack] = b"]\x94(" + b"".join(gets) + b"e"
        return b"]\x94(" + b"".join(parts) + b"e"

    def _new_frame(self, frame: Frame) -> bytes:
        out = self._out
        out.memoize(frame)
        parts = [b"}\x94("]
        parts += [out.text("name"), out.text(frame.name)]
        parts += [out.text("filename"), out.text(frame.filename)]
        parts += [out.text("line"), number_opcode(frame.line), b"u"]
        return b"".join(parts)
