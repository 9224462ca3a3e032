"""What is sent for a line of a file of requests, and where to."""

from __future__ import annotations

import io
import json
import wave
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import SpecError
from ullage.players.inside.requests.requests import Request
from ullage.players.phantom.http_requests import Endpoint, make_body


def sent(line: dict[str, Any], **fields: Any) -> Any:
    content, kind = make_body(Request("r.jsonl:1", line), fields, Path())
    assert kind == "application/json"
    return json.loads(content)


def test_a_body_is_sent_as_it_is_with_what_it_lacks() -> None:
    line = {"timestamp": 3, "messages": [{"role": "user", "content": "a"}], "model": "own"}
    assert sent(line, model="m", stream=False) == {
        "messages": line["messages"], "model": "own", "stream": False,
    }  # fmt: skip


def test_a_line_of_a_trace_becomes_tokens() -> None:
    body = sent({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [46, 47]})
    assert set(body) == {"prompt", "max_tokens", "ignore_eos"}
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (700, 5, True)
    assert body["prompt"] == [146] * 512 + [147] * 188
    same = sent({"input_length": 600, "hash_ids": [46, 99]})
    assert same["prompt"][:512] == body["prompt"][:512], "one hash is one block"
    assert same["prompt"][512:] != body["prompt"][512:600]
    assert "max_tokens" not in same
    assert sent({"input_length": 3, "prompt": "own"})["prompt"] == "own"
    assert len(sent({"input_length": 2000, "hash_ids": [1]})["prompt"]) == 2000


def form(line: dict[str, Any], directory: Path, **fields: Any) -> dict[str, bytes]:
    """The parts of a form, read by another reader."""
    content, kind = make_body(Request("r.jsonl:1", line), fields, directory)
    whole = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + content)
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
        for part in whole.get_payload()
    }


def test_audio_is_a_form(tmp_path: Path) -> None:
    (tmp_path / "clip.wav").write_bytes(b"RIFF\x00\xff")
    parts = form({"audio": "clip.wav", "language": "en"}, tmp_path, model="whisper")
    assert parts == {"model": b"whisper", "language": b"en", "file": b"RIFF\x00\xff"}


def test_audio_of_a_length_is_silence(tmp_path: Path) -> None:
    parts = form({"audio_s": 2.5}, tmp_path)
    with wave.open(io.BytesIO(parts["file"])) as file:
        assert file.getnframes() / file.getframerate() == 2.5
        assert not any(file.readframes(file.getnframes()))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8000/v1/x?a=1", Endpoint("127.0.0.1", 8000, "/v1/x?a=1")),
        ("http://localhost:1", Endpoint("localhost", 1, "/")),
        ("http://[::1]:9/a", Endpoint("::1", 9, "/a")),
    ],
)
def test_a_url_of_this_machine(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://10.0.0.1:80/", "not of this machine"),
        ("http://127.0.0.1.example.com:80/", "not of this machine"),
        ("http://user@example.com:80/", "not of this machine"),
        ("ftp://127.0.0.1:80/", "is not http"),
        ("127.0.0.1:80", "is not http"),
        ("http://127.0.0.1:70000/", "is not a URL"),
        ("http://127.0.0.1/", "has no port"),
    ],
)
def test_another_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Endpoint.parse(url)
