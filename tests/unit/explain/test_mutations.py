"""Random damage to each file that ullage reads: refused in a sentence or read, never a traceback,
and never the exit code of an answer that nobody gave.

What launches programs is replaced; the rest is what the command line does.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ullage.act.techniques.plan import Plan
from ullage.cli import run_cli
from ullage.search.runs.job import read_plan
from ullage.verbs.check.gate.lock import LOCK_NAME
from ullage.verbs.check.gate.scenario import Case
from ullage.verbs.exec.options import ExecOptions

FEW, MANY = 100, 1000
COUNTS = [FEW, pytest.param(MANY, marks=pytest.mark.nightly)]

TOML = """\
# comment
[scenario.train]
command = "train.py --batch-size {batch}"
gpu = "h100-80gb"
memory = "60GiB"
steps = 3
timeout = "10m"
env = { SEED = 1, NAME = "b" }
matrix = { batch = [8, 16] }
inputs = ["data/*.bin"]
assume = ["nonzero=half"]
alloc_conf = "expandable_segments:True"
tolerance = "2%"
budget = { headroom = "5%", max_allocated = "40GiB", growth_per_step = 0 }

[scenario.rank]
command = ["train.py"]
gpu = ["l4", "t4"]
world_size = 8
ranks = [0, 7]

[scenario.serve]
gpu = "l4"

[scenario.serve.requests]
file = "requests.jsonl"
function = "serve.py:handle"
concurrency = 1
"""
LOCK = """\
version = 1

[scenario."train/batch=8"]
command = "train.py --batch-size 8"
gpu = "h100-80gb"
torch = "2.15.0+cu132"
cuda = "13.2"
ullage = "0.1.0"
basis = "exact"
assumed = ["a", "b"]
findings = ["UL121"]
peak_at = "step 1, backward"
peak_requested_bytes = 1073741824  # 1.00 GiB
peak_allocated_bytes = 1073741824
peak_reserved_bytes = 2147483648
peak_used_bytes = 3147483648
growth_bytes_per_step = 0

[scenario."train/batch=8".categories]
activation = 1073741824

[scenario."train/batch=8".places]
"train.py in forward" = 1073741824

[test."a::b"]
basis = "assumed"
peak_requested_bytes = 1
peak_allocated_bytes = 1
peak_reserved_bytes = 1
peak_used_bytes = 1
"""
PLAN: dict[str, Any] = {
    "schema": "ullage.plan/1",
    "ullage": "0.1.0",
    "made_for": {
        "torch": "2.15.0+cu132", "model": "GPT", "num_parameters": 1000,
        "modules": {"h.0": "Block", "h.1": "Block"}, "optimizer": "AdamW",
    },
    "actions": [
        {"technique": "checkpoint", "modules": ["h.0", "h.1"], "settings": {}},
    ],
    "foreseen": {
        "gpu": "rtx-4090", "budget_bytes": 1 << 34, "peak_used_bytes": 1 << 33,
        "peak_allocated_bytes": 1 << 33, "step_s": 0.25, "host_bytes": 0, "num_gpus": 1,
    },
}  # fmt: skip
SNAPSHOT = (
    "[64 w+4@main:3>layer:7=parameter F a+8@main:3>layer:9 f B a- b O s+8=optimizer_state o S "
    "F a+8@main:3>layer:9 f B a- b O o S {64 b+16@main:4"
)

# What stands in the place of a value; of TOML as it is written.
WRONG_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, -5, 2**31, 2**53, 2**63, 2**70, 10**400, 0.5, -0.0, float("nan"),
    float("inf"), 1e308, "", " ", "x", "\0", "\x1b[31m", "\n::error::", "a" * 5000, "\udcff", "é🙂",
    "1e9", "80G", "-5", "../..", "/", "~nobody/x", b"", b"\xff", b"\0" * 7, [], [[]], [None], {},
    {"": {}}, [1, "a", None], ["a"] * 300, (), (1, 2),
)  # fmt: skip
WRONG_TOML = (
    '""', '" "', "0", "-1", "-5", "9223372036854775808", "9" * 5000, "nan", "-inf", "1e308", "true",
    "[]", "[[]]", "[1, true]", "{}", "{ a = {} }", '"\\u0000"', '"\\u001b[31m"', '"{batch}{x}"',
    "1979-05-27T07:32:00Z", "07:32:00",
    "'''\n'''", "[" * 200 + "]" * 200, '"80G"', '"-5%"', '"~x/y"',
    '"/**/*"', '["**"]', '"' + "a" * 5000 + '"', "{ '=' = 1 }", '"9999999999999999999999GiB"',
)  # fmt: skip


def deep(levels: int) -> list[Any]:
    """A list in a list, so many times."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from places_of(inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield value, number
            yield from places_of(inner)


def damage(tree: Any, chosen: random.Random) -> Any:
    """The tree with one to three places deleted, doubled, moved or replaced."""
    tree = copy.deepcopy(tree)
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        places = list(places_of(tree))
        if not places:
            return tree
        container, key = chosen.choice(places)
        how = chosen.randrange(6)
        if how == 0:
            del container[key]
        elif how == 1 and isinstance(container, dict):
            container[
                chosen.choice(("x", "", "\x1b", key.upper() if isinstance(key, str) else 1))
            ] = container[key] if chosen.random() < 0.5 else container.pop(key)
        elif how == 1:
            container.insert(key, container[key])
        elif how == 2:
            container[key] = deep(chosen.choice((2, 40, 120)))
        elif how == 3:
            other, place = chosen.choice(places)
            container[key] = (
                copy.deepcopy(other[place]) if place in dict.fromkeys(_keys(other)) else 0
            )
        elif how == 4 and isinstance(container[key], int):
            container[key] += chosen.choice((-1, 1, 512, -(2**33), 2**62))
        else:
            container[key] = chosen.choice(WRONG_VALUES)
    return tree


def _keys(container: Any) -> Sequence[Any]:
    return list(container) if isinstance(container, dict) else range(len(container))


def damage_toml(text: str, chosen: random.Random) -> str:
    """The text with one to three lines deleted, doubled, moved, or given another value."""
    lines = text.splitlines()
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        place = chosen.randrange(len(lines))
        line, how = lines[place], chosen.randrange(6)
        if how == 0:
            lines[place] = ""
        elif how == 1:
            lines.insert(place, line)
        elif how == 2:
            lines.insert(chosen.randrange(len(lines)), lines.pop(place))
        elif "=" in line and how < 5:
            name = line.partition("=")[0]
            lines[place] = f"{name}= {chosen.choice(WRONG_TOML)}"
        else:
            lines[place] = line.replace(
                *chosen.choice((("e", "E"), ("[", "[["), ("=", "."), ('"', "")))
            )
    return "\n".join(lines) + "\n"


def damage_bytes(content: bytes, chosen: random.Random) -> bytes:
    """Mostly the bytes themselves; else cut off, one changed, or some of no text put in."""
    how = chosen.randrange(10)
    place = chosen.randrange(len(content) + 1)
    if how == 0:
        return content[:place]
    if how == 1:
        return content[:place] + bytes([chosen.randrange(256)]) + content[place + 1 :]
    if how == 2:
        return content[:place] + chosen.choice((b"\xff\xfe", b"\0", b"\x1b[2J")) + content[place:]
    return content


@contextmanager
def run_nothing(_cases: Sequence[Case], _settings: object) -> Iterator[list[Any]]:
    """In the place of what runs the cases."""
    yield []


def raise_it(error: Exception, _arguments: Sequence[str]) -> NoReturn:
    """In the place of what writes a report of a defect: the test shows it instead."""
    raise error


@pytest.fixture
def read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """`read(words, name, content, codes)`: the file is what `ullage WORDS` reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ullage.cli.report_crash", raise_it)
    monkeypatch.setattr("ullage.verbs.check.function.run_cases", run_nothing)
    monkeypatch.setattr("ullage.verbs.exec.function.execute.act", lambda _: (0, None))
    (tmp_path / "requests.jsonl").write_text('{"input_length": 1}\n')
    (tmp_path / "serve.py").write_text("def handle(request): pass\n")

    def run(words: Sequence[str], name: str, content: bytes, codes: set[int]) -> None:
        Path(name).write_bytes(content)
        code = run_cli(list(words))
        out, err = capsys.readouterr()
        assert code in codes, err
        assert "Traceback" not in err
        assert code != 2 or err.startswith("ullage: "), err
        assert "\x1b" not in out + err and "\0" not in out + err

    return run


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_configurations(read: Callable[..., None], count: int) -> None:
    chosen = random.Random(1)
    for _ in range(count):
        content = damage_bytes(damage_toml(TOML, chosen).encode(), chosen)
        read(["check", "--no-cache"], "ullage.toml", content, {0, 2})


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_locks(read: Callable[..., None], count: int) -> None:
    chosen = random.Random(2)
    Path("ullage.toml").write_text('[scenario.train]\ncommand = "train.py"\n')
    for _ in range(count):
        content = damage_bytes(damage_toml(LOCK, chosen).encode(), chosen)
        read(["check", "--no-cache"], LOCK_NAME, content, {0, 2})


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_plans(read: Callable[..., None], count: int, monkeypatch: Any) -> None:
    chosen = random.Random(3)

    def use(options: ExecOptions) -> tuple[int, Any]:
        assert options.plan is not None
        plan = read_plan(options.plan)
        assert Plan.parse(plan.text()) == plan
        assert isinstance(plan.summary, str) and isinstance(plan.variables, dict)
        return 5, type("Outcome", (), {"is_applied": True})

    monkeypatch.setattr("ullage.verbs.exec.function.execute.act", use)
    words = ["exec", "--plan", "plan.json", "--", "train.py"]
    for _ in range(count):
        tree = damage(PLAN, chosen)
        content = json.dumps(tree, default=repr).encode(errors="surrogatepass")
        read(words, "plan.json", damage_bytes(content, chosen), {2, 5})


# What is asked of a snapshot, in turn.
WAYS = (
    ("explain", "s.pickle"),
    ("explain", "s.pickle", "--json"),
    ("explain", "s.pickle", "-o", "o.html"),
    ("explain", "s.pickle", "-o", "o.folded", "-o", "o.csv"),
    ("explain", "s.pickle", "-o", "o.perfetto.json"),
    ("explain", "s.pickle", "-o", "o.ullage"),
    ("diff", "whole.pickle", "s.pickle"),
    ("explain", "s.pickle", "--share", "o.pickle"),
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("has_record", [False, True])
def test_damaged_snapshots(
    read: Callable[..., None],
    file_of: Callable[..., dict[str, Any]],
    count: int,
    has_record: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    chosen = random.Random(4 + has_record)
    whole = file_of(SNAPSHOT + " !16:2" * has_record, has_record=has_record)
    Path("whole.pickle").write_bytes(pickle.dumps(whole))
    for number in range(count):
        tree = {**whole, "ullage": damage(whole["ullage"], chosen)} if has_record else None
        content = pickle.dumps(tree or damage(whole, chosen), protocol=4)
        words = WAYS[number % len(WAYS)]
        # One of the two ends out of memory, which is a legitimate "no".
        codes = {0, 1, 2} if has_record and words[0] == "explain" else {0, 2}
        read(words, "s.pickle", damage_bytes(content, chosen), codes)
