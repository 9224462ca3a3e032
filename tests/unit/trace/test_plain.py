"""The native reader of pickles: it says what pickle says of plain values, and takes no others."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rows import each

from ullage.ground.errors import SnapshotError
from ullage.log import plain
from ullage.log.plain import ABSENT, integers, parse_plain, read_plain
from ullage.log.plain import TEXT as TEXT_TAG

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ATOMS = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60 - 1) | TEXT | st.binary(max_size=20)
    | st.floats(allow_nan=False)
)  # fmt: skip
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=6)
    ),
    max_leaves=40,
)
ONE_TEST_DIRECTORY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RunApart = Callable[[str, Path], tuple[str, int]]
Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with these bytes."""

    def make(content: bytes) -> Path:
        path = tmp_path / "file.pickle"
        path.write_bytes(content)
        return path

    return make


def load(path: Path) -> Any:
    """What the file holds, as Python has it."""
    with read_plain(path) as file:
        return file.python(file.root)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@ONE_TEST_DIRECTORY
@given(value=PLAIN)
def test_it_says_what_pickle_says(write: Write, protocol: int, value: Any) -> None:
    content = pickle.dumps(value, protocol)
    try:
        got = load(write(content))
    except SnapshotError as error:
        # Before protocol 3, bytes are a call of _codecs.encode.
        assert protocol < 3
        assert "_codecs.encode" in str(error) or "__builtin__.bytes" in str(error)
        return
    if protocol == 0:
        return  # its texts keep their escapes
    assert got == value


def test_a_value_that_is_referred_to_again_is_the_same(write: Write) -> None:
    shared = {"filename": "a.py", "line": 3, "name": "f"}
    rows = [{"frames": [shared, shared], "n": i} for i in range(3)]
    rows += [{"frames": [shared], "n": 3}]
    with read_plain(write(pickle.dumps({"rows": rows, "again": rows[0]}))) as file:
        column = file.column(file.items(file.get(file.root, "rows")), "frames")
        assert file.stacks_of(column).tolist() == [1, 1, 1, 2]
        assert [len(file.stack(number)) for number in (1, 2)] == [2, 1]
        assert file.python(file.get(file.root, "again")) == rows[0]


def test_a_list_that_grows_after_it_was_shared_is_not_shared_any_more(write: Write) -> None:
    # x = [{}]; d = {"a": x, "b": [that dict]}; x.append({}): a pickle may, though torch's do not.
    content = (
        b"\x80\x04]\x94}\x94a}\x94(\x8c\x01ah\x00\x8c\x01b](h\x01eu"  # d over x and an equal list
        b"h\x00}a0h\x02\x86."  # x gets another dict; (x's dict container)
    )
    expected = pickle.loads(content)
    assert load(write(content)) == expected


def test_columns_are_taken_from_dicts_of_several_shapes(write: Write) -> None:
    rows = [{"a": 1, "b": "x"}, {"b": "y", "a": -(2**40)}, {"b": "z"}, 5, {"a": None}]
    with read_plain(write(pickle.dumps(rows))) as file:
        column = file.column(file.items(file.root), "a")
        numbers, is_there = integers(column, fallback=-1)
        assert numbers.tolist() == [1, -(2**40), -1, -1, -1]
        assert is_there.tolist() == [True, True, False, False, False]
        assert (column[2:4] == ABSENT).all()
        assert file.count_keys(file.items(file.root)) == {"a": 3, "b": 3}
        assert file.column(file.items(file.root), "missing").tolist() == [ABSENT] * 5
        assert file.get(file.root, "a") == ABSENT, "a list has no keys"


@pytest.mark.parametrize("number", [2**60, -(2**60) - 1, 2**63, -(2**63), 2**64 - 1, 10**40])
def test_numbers_wider_than_any_address_come_to_the_nearest_double(
    write: Write, number: int
) -> None:
    assert load(write(pickle.dumps([number]))) == [int(float(number))]


class Evil:
    """Would be called by whoever unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("called",))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_class_is_named_and_never_loaded(
    write: Write, protocol: int, capfd: pytest.CaptureFixture[str]
) -> None:
    message = r"it names (builtins|__builtin__)\.print; a memory snapshot holds plain values only"
    with pytest.raises(SnapshotError, match=message):
        load(write(pickle.dumps({"segments": [Evil()]}, protocol)))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "value", [{1, 2}, frozenset({1}), 1j, range(3), np.float64(1), np.arange(3), Path("x")]
)
def test_what_is_not_plain_is_refused(write: Write, value: object) -> None:
    with pytest.raises(SnapshotError, match=r"names|opcode"):
        load(write(pickle.dumps(value)))


HUGE = struct.pack("<Q", 10**12)
HOSTILE = {
    "a text of 10^12 bytes": b"\x80\x04\x8d" + HUGE + b"x.",
    "bytes of 10^12 bytes": b"\x80\x04\x8e" + HUGE + b"x.",
    "a byte array of 10^12 bytes": b"\x80\x05\x96" + HUGE + b"x.",
    "memo number 2^32 - 1": b"\x80\x04]r\xff\xff\xff\xff.",
    "memo number 10^18": b"\x80\x02]p1000000000000000000\n.",
    "a whole number of 2^31 bytes": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "an unknown memo number": b"\x80\x04h\x05.",
    "nothing to pop": b"\x80\x040.",
    "no mark": b"\x80\x04u.",
    "a pop across a mark": b"\x80\x04](0.",
    "a dict with a list as key": b"\x80\x04}(]Nu.",
    "an odd number of items": b"\x80\x04}(Nu.",
    "an append to a tuple": b"\x80\x04)Na.",
    "an append to a number": b"\x80\x04K\x01Na.",
    "items for a list": b"\x80\x04](NNu.",
    "no value": b"\x80\x04.",
    "nothing": b"",
    "text": b"segments: none\n",
    "gzip": b"\x1f\x8b\x08\x00" + bytes(30),
    "zip": b"PK\x03\x04" + bytes(30),
    "protocol 9": b"\x80\x09N.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"\x80\x04NQ.",
    "a global": b"cos\nsystem\n.",
    "an instance": b"(ios\nsystem\n.",
    "a line without end": b"\x80\x02I" + b"1" * 10000,
    "not a number": b"\x80\x02Ione\n.",
    "a million keys": b"\x80\x04}(" + b"".join(b"J" + struct.pack("<i", i) + b"N"
                                              for i in range(100_000)) + b"u.",
}  # fmt: skip


@each("name", HOSTILE)
def test_a_hostile_file_is_one_clear_error(write: Write, name: str) -> None:
    with pytest.raises(SnapshotError, match=r"^cannot read '.*file\.pickle': it "):
        load(write(HOSTILE[name]))


def test_a_file_cut_at_any_byte_is_one_clear_error(write: Write) -> None:
    rows = [{"addr": 2**40 + i, "frames": [{"filename": "a.py", "line": 1}]} for i in range(20)]
    content = pickle.dumps({"segments": [], "device_traces": [rows], "f": 1.5, "b": b"x" * 300})
    for end in range(len(content)):
        with pytest.raises(SnapshotError, match=r"cut off|not a pickle"):
            load(write(content[:end]))


def test_deep_nesting_ends_where_python_values_are_made(write: Write) -> None:
    path = write(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with read_plain(path) as file, pytest.raises(SnapshotError, match="nests values more than"):
        file.python(file.root)


def test_a_file_that_unfolds_is_stopped_before_the_memory_is_gone(
    tmp_path: Path, run_apart: RunApart
) -> None:
    # Each byte becomes a list: 24 bytes and more. In a process of its own, whose peak tells.
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x04(" + b"]" * 60_000_000 + b"l.")
    code = (
        "import sys; from pathlib import Path\n"
        "from ullage.log.plain import read_plain\n"
        "try: read_plain(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)\n"
    )
    message, peak_bytes = run_apart(code, path)
    assert "it unfolds to more than" in message
    assert peak_bytes < 1024 * 2**20


@ONE_TEST_DIRECTORY
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(write: Write, content: bytes) -> None:
    with contextlib.suppress(SnapshotError):
        load(write(b"\x80\x04" + content))


@ONE_TEST_DIRECTORY
@given(value=PLAIN, data=st.data())
def test_a_pickle_with_a_changed_byte_is_read_or_refused(
    write: Write, value: Any, data: st.DataObject
) -> None:
    content = bytearray(pickle.dumps(value))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(SnapshotError):
        load(write(bytes(content)))


def test_a_missing_file_and_a_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        read_plain(tmp_path / "missing")
    with pytest.raises(SnapshotError, match="directory"):
        read_plain(tmp_path)


def test_it_takes_less_memory_than_the_file(write: Write) -> None:
    frames = [{"filename": f"{i}.py", "line": i, "name": "f"} for i in range(100)]
    rows = [
        {"action": "alloc", "addr": 2**46 + i, "size": 512, "frames": frames[i % 50 :][:40]}
        for i in range(20_000)
    ]
    path = write(pickle.dumps({"segments": [], "device_traces": [rows]}, 4))
    with read_plain(path) as file:
        assert file.used_bytes < 1.5 * path.stat().st_size


def test_pickles_written_in_parts_are_read(write: Write) -> None:
    # Longer than the reader's buffer, with texts across its end.
    rows = [{"text": "x" * 70_000, "other": str(i) * 1000} for i in range(50)]
    buffer = io.BytesIO()
    pickle.Pickler(buffer, 4).dump(rows)
    assert load(write(buffer.getvalue())) == rows


def test_bytes_are_read_as_a_file_is() -> None:
    value = {"a": [1, "é", b"x"], "b": (None, True)}
    with parse_plain(pickle.dumps(value)) as file:
        assert file.python(file.root) == value
    with pytest.raises(SnapshotError, match=r"^it ends in the middle"):
        parse_plain(pickle.dumps(value)[:-3])


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_it_knows_where_the_texts_are(write: Write, protocol: int) -> None:
    # Longer than the reader's buffer, so that places are counted across its end.
    texts = [
        "first",
        "é" * 300,
        *(f"{i} " * (1000 if protocol == 0 else 20_000) for i in range(40)),
    ]
    content = pickle.dumps([1, *texts, 2.5], protocol)
    with read_plain(write(content), keeps_spots=True) as file:
        rows = list(zip(*(column.tolist() for column in file.spots()), strict=True))
        frames = [begin for begin, _, value in rows if value == ABSENT]
        assert all(content[begin] == 0x95 for begin in frames)
        assert bool(frames) == (protocol >= 4)
        spots = [row for row in rows if row[2] & 7 == TEXT_TAG]
        for text, (begin, end, value) in zip(texts, spots, strict=True):
            # Taken out alone, the place is that text.
            assert pickle.loads(content[begin:end] + b".") == text
            assert protocol == 0 or file.text(value) == text


def test_items_and_lists_of_a_column(write: Write) -> None:
    with read_plain(write(pickle.dumps([[{}, 2], (), 5, [3], {"a": 1}]))) as file:
        rows = file.items(file.root)
        numbers, is_there = integers(file.item(rows, 0))
        assert is_there.tolist() == [False, False, False, True, False]
        assert numbers[3] == 3
        assert integers(file.item(rows, 1))[0].tolist() == [2, 0, 0, 0, 0]
    with read_plain(write(pickle.dumps([[{}, {}], [], 5, [{}]]))) as file:
        items, starts = file.flatten(file.items(file.root))
        assert starts.tolist() == [0, 2, 2, 2, 3]
        assert len(items) == 3


def test_lists_that_hold_one_another_are_not_unfolded(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_MIN_BYTES", 4 << 20)  # so that it takes no time
    value: Any = ["lol"]
    for _ in range(20):
        value = [value] * 10
    path = write(pickle.dumps(value))
    with read_plain(path) as file, pytest.raises(SnapshotError, match="unfolds to more values"):
        file.python(file.root)


def test_bytes_that_are_referred_to_again_are_there_once(write: Write) -> None:
    with read_plain(write(pickle.dumps([b"x" * (1 << 20)] * 10_000))) as file:
        values = file.python(file.root)
    assert all(value is values[0] for value in values)


def test_rows_that_are_referred_to_again_are_not_read_again(write: Write) -> None:
    rows: list[Any] = [{} for _ in range(1000)]
    with read_plain(write(pickle.dumps([rows] * 1000))) as file:
        lists = file.items(file.root)
        with pytest.raises(SnapshotError, match="has 1000000 rows by referring to the same ones"):
            file.flatten(lists)


def test_tuples_that_say_the_same_are_kept_once(write: Write) -> None:
    # The number of a pool: a tuple of its own in each event.
    def used(*, has_pool: bool) -> int:
        rows = [{"a": i, "b": (0, int("3")) if has_pool else 5} for i in range(10_000)]
        with read_plain(write(pickle.dumps(rows, 2))) as file:
            assert file.python(file.root) == rows
            return file.used_bytes

    # A list without items of its own, and no more.
    assert used(has_pool=True) - used(has_pool=False) < 10_000 * 48


def test_texts_of_equal_hash_do_not_make_it_slow(write: Write) -> None:
    # Words whose differences cancel, two by two, in a hash without a seed such as FNV-1a.
    top, carried = 1 << 63, 1 << 63 | 1 << 34
    texts = [
        b"".join(struct.pack("<QQ", (i >> j & 1) * top, (i >> j & 1) * carried) for j in range(16))
        for i in range(1 << 16)
    ]
    path = write(pickle.dumps(texts))
    started = time.process_time()
    with read_plain(path) as file:
        assert file.length(file.root) == len(texts)
    assert time.process_time() - started < 3
