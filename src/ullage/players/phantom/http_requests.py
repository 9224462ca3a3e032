"""The HTTP request for each line of a file of requests, and its address.

    endpoint = Endpoint.parse("http://127.0.0.1:8000/v1/completions")
    content, kind = make_body(request, {"model": "m"}, directory)

A line is sent as JSON, unchanged except for these fields:

    input_length, output_length     a prompt of this many tokens, and the number of tokens to
    generate
                                    (Mooncake's traces; equal hash_ids mean equal blocks of 512
                                    tokens)
    timestamp                       left out: the phantom has no time, so there are no pauses
    audio, audio_s                  a form with an audio file: the one at that path, or this many
                                    seconds of silence
"""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from ullage.ground.address import Address
from ullage.ground.config.tables import check_positive
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import JSON, Misfit, at_least
from ullage.players.inside.requests.requests import Request

_TRACE = ("timestamp", "input_length", "output_length", "hash_ids")
# Source: Mooncake's open traces (kvcache-ai/Mooncake, FAST25-release): one hash for 512 tokens.
_BLOCK_TOKENS = 512
# Token numbers that every vocabulary has, beyond those that often end a text.
_FIRST_TOKEN, _NUM_TOKENS = 100, 10_000
_SAMPLES_PER_S = 16_000
_BOUNDARY = "ullage-boundary-7d1f5a"
PORT = "{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of requests; the path begins with a slash and includes the query."""

    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Reads "http://127.0.0.1:8000/v1/completions".

        Raises:
            SpecError: it is not on this machine, has no port, or is not http.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SpecError(f"{url!r} is not a URL: {error}") from None
        if parts.scheme != "http":
            raise SpecError(
                f"{url!r} is not http; expected, for example: http://127.0.0.1:{PORT}/generate"
            )
        if not Address(parts.hostname or "", 0).is_loopback:
            raise SpecError(
                f"{url!r} is not of this machine, where the scenario's own server runs; write "
                "127.0.0.1"
            )
        if port is None:
            raise SpecError(f"{url!r} has no port; write one, or {PORT} for one that is free")
        query = f"?{parts.query}" if parts.query else ""
        return cls(parts.hostname or "", port, f"{parts.path or '/'}{query}")


@dataclass(frozen=True, slots=True)
class _Line:
    input_length: Annotated[int, at_least(1)] = 1
    output_length: Annotated[int, at_least(1)] = 1
    hash_ids: tuple[int, ...] = ()
    audio_s: Annotated[float, check_positive] = 1.0


def check_request(request: Request, directory: Path) -> None:
    """Raises SpecError if a line cannot be sent."""
    try:
        JSON.read(_Line, request.body)
    except Misfit as misfit:
        raise SpecError(misfit.of_file(request.where)) from None
    for path in audio_of(request, directory):
        if not path.is_file():
            raise SpecError(
                f"{request.where}: there is no audio file {str(path)!r}; paths begin at the file "
                "of requests"
            )


def audio_of(request: Request, directory: Path) -> Iterator[Path]:
    """Yields the path of the audio file that a line sends, if it has one."""
    if isinstance(request.body.get("audio"), str):
        yield directory / request.body["audio"]


def make_body(request: Request, fields: Mapping[str, Any], directory: Path) -> tuple[bytes, str]:
    """Makes the body of the request for a line, with its content type.

    Args:
        request: a request that `check_request` accepted.
        fields: fields of every request, unless the line has them itself.
        directory: the base of relative paths of audio files.
    """
    line = request.body
    own_fields = {key: value for key, value in line.items() if key not in _TRACE}
    trace_fields = _completion(line) if "input_length" in line else {}
    body = {**trace_fields, **fields, **own_fields}
    audio = _audio(request, directory)
    if audio is None:
        return json.dumps(body).encode(), "application/json"
    return _form(body, *audio), f"multipart/form-data; boundary={_BOUNDARY}"


def _completion(line: Mapping[str, Any]) -> dict[str, Any]:
    """The request to OpenAI's completions API for a line of a trace. Only its length ends it."""
    count = line["input_length"]
    hashes = [*line.get("hash_ids", []), *range(count // _BLOCK_TOKENS + 1)]
    blocks = hashes[: count // _BLOCK_TOKENS + 1]
    tokens = [_FIRST_TOKEN + block % _NUM_TOKENS for block in blocks for _ in range(_BLOCK_TOKENS)]
    completion = {"prompt": tokens[:count], "ignore_eos": True}
    return completion | ({"max_tokens": line["output_length"]} if "output_length" in line else {})


def _audio(request: Request, directory: Path) -> tuple[str, bytes] | None:
    """The name and content of a line's audio file; None: it has none."""
    for path in audio_of(request, directory):
        return path.name, path.read_bytes()
    if "audio_s" not in request.body:
        return None
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, _SAMPLES_PER_S, 0, "NONE", ""))
        file.writeframes(bytes(2 * int(request.body["audio_s"] * _SAMPLES_PER_S)))
    return "audio.wav", content.getvalue()


def _form(body: Mapping[str, Any], name: str, content: bytes) -> bytes:
    """A form with the fields and the file, for OpenAI's transcriptions API."""
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="'
    parts = [
        f'{head}{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in body.items()
        if key not in {"audio", "audio_s"}
    ]
    kind = "Content-Type: application/octet-stream"
    parts.append(f'{head}file"; filename="{name}"\r\n{kind}\r\n\r\n'.encode())
    return b"".join([*parts, content, f"\r\n--{_BOUNDARY}--\r\n".encode()])
