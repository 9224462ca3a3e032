"""Texts that are longer than anything honest: what reads them takes time by their length, not by
its square, and less than a minute in any case.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each

from ullage.explain.servers.reader import find_other, read_start
from ullage.ground.errors import SpecError
from ullage.ground.parsing import parse_toml
from ullage.ground.units import parse_bytes
from ullage.log.scrubbing.scrub import scrub_snapshot
from ullage.log.snapshot_reader import read_snapshot

LIMIT_S = 60.0
NUM_CHARS = 150_000
BASE = "INFO 01-01 [x.py:1] Initializing a V1 LLM engine (v0.11) with config: model='m', seed=0\n"
SGLANG = "server_args=ServerArgs(model_path='m', tp_size=1)\n"
LINES = (
    "1", "1.", "a", " ", "OLLAMA_", " A1", "[ A1", "KV Cache is allocated. ", "Load weight end. ",
    "Capture ", "Mamba Cache is allocated conv_", "conv_", "non-default args: ", "a=1,", "{'a': ",
    "Error: ", "1GiB for ", "vllm:a{a", "vllm:a{} ", "}", "a=\"", "'", "\\", "\x1b[",
)  # fmt: skip


def within_a_minute(work: Callable[[], object]) -> None:
    """Does work, and holds the processor time that it took to the limit."""
    started = time.process_time()
    work()
    assert time.process_time() - started < LIMIT_S


@each("part", LINES, name=repr)
def test_a_line_of_a_servers_log(part: str) -> None:
    for begin in (BASE, SGLANG):
        line = part * (NUM_CHARS // len(part))
        within_a_minute(partial(read_start, begin + line + "\n"))
        within_a_minute(partial(find_other, begin + line + "\n"))


@each("printed", ["{1, 2}", "{[]: 1}", "{'a'", "{}", "{(1, 2)}"])
def test_options_that_are_no_dict_are_none(printed: str) -> None:
    start = read_start(f"{BASE}non-default args: {printed}\n")
    assert start is not None and start.engine == "vllm"


def snapshot(file: str, function: str) -> dict[str, Any]:
    """A snapshot of one event in one frame."""
    frame = {"filename": file, "name": function, "line": 1}
    event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": [frame]}
    return {"segments": [], "device_traces": [[event]]}


@pytest.mark.parametrize(
    ("file", "function"), [("/" + "a" * 10**7 + "/b.py", "f"), ("a.py", "f" * 10**7 + "g")]
)
def test_a_name_in_a_snapshot_keeps_its_ends(tmp_path: Path, file: str, function: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot(file, function)))
    frames = read_snapshot(path).stacks.frames
    assert len(frames.file[0]) + len(frames.function[0]) < 5000
    assert frames.file[0].endswith(file[-5:]) and frames.function[0].endswith(function[-1:])
    assert frames.file[0][:3] == file[:3] and frames.function[0][0] == "f"


def test_a_path_of_that_length_is_hashed_as_others_are(tmp_path: Path) -> None:
    path, target = tmp_path / "a.pickle", tmp_path / "b.pickle"
    path.write_bytes(pickle.dumps(snapshot("/srv/" + "secret/" * 1000 + "b.py", "f")))
    with target.open("wb") as file:
        scrub_snapshot(path, file, key=b"k")
    assert b"secret" not in target.read_bytes()


def test_a_value_of_a_configuration() -> None:
    with pytest.raises(ValueError, match="a text of 65537 characters; expected 65536 or fewer"):
        parse_toml(f'a = ["{"b" * 65537}"]')
    assert parse_toml(f'a = "{"b" * 65536}"')


def test_a_size_of_a_million_digits() -> None:
    def read() -> None:
        with pytest.raises(SpecError, match="more than the 8 EiB"):
            parse_bytes("1" * 1_000_000)

    within_a_minute(read)
