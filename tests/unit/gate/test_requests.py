"""Scenarios that replay requests: what is read, and what is wrong with its line and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rows import each

from ullage.ground.errors import SpecError
from ullage.verbs.check.gate.config import Configuration, load_configuration
from ullage.verbs.check.gate.scenario import expand

SERVE = "import torch\nasync def handle(request): ...\nclass Model:\n    def answer(self): ...\n"
URL = "http://127.0.0.1:{port}/v1/completions"
Refuse = Callable[[Path, str, int, str], None]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a function, a server and two requests."""
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "r.jsonl").write_text('{"input_length": 9, "output_length": 2}\n\n{"audio_s": 3}\n')
    return tmp_path


def load(directory: Path, text: str) -> Configuration:
    (directory / "ullage.toml").write_text(text, encoding="utf-8")
    return load_configuration(directory)


def test_a_function_with_users_of_a_matrix(project: Path) -> None:
    found = load(
        project,
        '[scenario.chat]\nmatrix = { users = [1, 8] }\n[scenario.chat.requests]\n'
        'file = "r.jsonl"\nfunction = "serve.py:handle"\nconcurrency = "{users}"\nlimit = 1\n',
    )  # fmt: skip
    cases = expand(found.scenarios["chat"])
    assert [case.name for case in cases] == ["chat/users=1", "chat/users=8"]
    assert [case.text for case in cases] == [
        "serve.py:handle < r.jsonl, the first 1, 1 user",
        "serve.py:handle < r.jsonl, the first 1, 8 users",
    ]


def test_a_server_with_all_its_keys(project: Path) -> None:
    found = load(
        project,
        '[scenario.http]\ncommand = "serve.py --port {port}"\n[scenario.http.requests]\n'
        f'file = "r.jsonl"\nurl = "{URL}"\nready = "/health"\nready_timeout_s = 9\n'
        'timeout_s = 8\nbody = { model = "m" }\n',
    )  # fmt: skip
    (case,) = expand(found.scenarios["http"])
    replay = case.scenario.replay
    assert replay is not None
    assert (replay.url, replay.ready, replay.ready_timeout_s, replay.timeout_s) == (
        URL, "/health", 9, 8,
    )  # fmt: skip
    assert replay.fields == {"model": "m"}
    assert case.text == "serve.py --port '{port}' < r.jsonl, 1 user", "the port is not of the lock"


FUNCTION = '[scenario.a.requests]\nfile = "r.jsonl"\nfunction = "serve.py:handle"\n'
SERVER = '[scenario.a]\ncommand = "serve.py {port}"\n[scenario.a.requests]\nfile = "r.jsonl"\n'
WRONG = {
    "nobody answers": (
        '[scenario.a.requests]\nfile = "r.jsonl"\n', 1,
        'function or url says who answers, and one of them is needed: function = "serve.py:handle"',
    ),
    "two answer": (f'{SERVER}function = "serve.py:handle"\nurl = "{URL}"', 5, "one of them"),
    "no file": (
        '[scenario.a.requests]\nfunction = "serve.py:handle"\n', 1,
        'requests.file is missing; add it, for example: file = "requests.jsonl"',
    ),
    "a file that is not there": (FUNCTION.replace("r.js", "x.js"), 2, "No such file"),
    "a slip": (f"{FUNCTION}concurrenc = 3", 4, "did you mean 'concurrency'?"),
    "no users": (f"{FUNCTION}concurrency = 0", 4, "is '0'; expected how many run at once"),
    "users that are no number": (f'{FUNCTION}concurrency = "all"', 4, "is 'all'; expected how"),
    "no limit": (f"{FUNCTION}limit = 0", 4, "is 0; expected 1 or more"),
    "a function and a command": (
        f'[scenario.a]\ncommand = "serve.py"\n{FUNCTION}', 2,
        "scenario.a.command and requests.function are both there; keep the one",
    ),
    "a server that nothing starts": (
        f'[scenario.a.requests]\nfile = "r.jsonl"\nurl = "{URL}"', 1,
        "scenario.a.command is missing; write what starts the server",
    ),
    "a key of servers": (f'{FUNCTION}ready = "/health"', 4, "is for a server"),
    "a function that is not there": (
        FUNCTION.replace("handle", "handl"), 3,
        "is 'serve.py:handl', and serve.py has no 'handl'; did you mean 'handle'?",
    ),
    "a function of no file": (FUNCTION.replace("serve", "surf"), 3, "there is no file"),
    "a function that is none": (
        FUNCTION.replace("serve.py:handle", "handle"), 3, 'such as "serve.py:handle"',
    ),
    "growth of too few": (
        f'[scenario.a]\nbudget = {{ growth_per_step = "0B" }}\n{FUNCTION}', 2,
        "limits growth, and 2 requests of 1 at once are too few to tell; r.jsonl needs at least 3",
    ),
    "steps beside requests": (
        f"[scenario.a]\nsteps = 3\n{FUNCTION}", 2, "a scenario with requests ends with the last",
    ),
    "ranks beside requests": (f"[scenario.a]\nworld_size = 2\n{FUNCTION}", 2, "ends with the last"),
    "a URL elsewhere": (
        f'{SERVER}url = "http://example.com:{{port}}/"', 5,
        "is not of this machine, where the scenario's own server runs; write 127.0.0.1",
    ),
    "a URL of all machines": (f'{SERVER}url = "http://0.0.0.0:{{port}}/"', 5, "of this machine"),
    "a URL of no port": (f'{SERVER}url = "http://127.0.0.1/"', 5, "has no port; write one, or"),
    "a URL that is not http": (f'{SERVER}url = "https://127.0.0.1:1/"', 5, "is not http; expected"),
    "a port that nobody is told": (
        f'{SERVER}url = "{URL}"'.replace("serve.py {port}", "serve.py"), 5,
        "has {port}, and neither the command nor env has it; write it where the server takes its",
    ),
    "a port of the matrix": (
        f'{SERVER}url = "{URL}"\n[scenario.a.matrix]\nport = [1]', 6, "a port that ullage chooses",
    ),
    "a path that is none": (f'{SERVER}url = "{URL}"\nready = "health"', 6, 'such as "/health"'),
    "a time that is none": (f'{SERVER}url = "{URL}"\ntimeout_s = "3s"', 6, "a whole number"),
    "a file that nothing varies": (
        f"[scenario.a]\nmatrix = {{ size = [1] }}\n{FUNCTION}", 2, "write it where its values go",
    ),
}  # fmt: skip


@each("name", WRONG)
def test_what_is_wrong_is_told_with_file_line_and_remedy(
    project: Path, name: str, refuse: Refuse
) -> None:
    refuse(project, *WRONG[name])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "r.jsonl:2: Expecting property name"),
        ("[1, 2]", "r.jsonl:2 is [1, 2]; expected an object, such as {"),
        ('{"input_length": 0}', "r.jsonl:2: input_length is 0; expected 1 or more"),
        ('{"output_length": "many"}', "r.jsonl:2: output_length is 'many'"),
        ('{"hash_ids": 3}', "r.jsonl:2: hash_ids is 3; expected a list"),
        ('{"audio_s": -1}', "r.jsonl:2: audio_s is -1; expected a number above 0"),
        ('{"audio": "x.wav"}', "r.jsonl:2: there is no audio file"),
    ],
)
def test_a_wrong_request_is_told_with_its_line(project: Path, line: str, message: str) -> None:
    (project / "r.jsonl").write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(SpecError) as raised:
        load(project, f'{SERVER}url = "{URL}"')
    assert str(raised.value).startswith("ullage.toml:4: scenario.a.requests.file: ")
    assert message in str(raised.value)


def test_no_request_at_all(project: Path) -> None:
    (project / "r.jsonl").write_text("\n\n")
    with pytest.raises(SpecError, match=r"has no request; write one on each line, such as \{"):
        load(project, FUNCTION)
