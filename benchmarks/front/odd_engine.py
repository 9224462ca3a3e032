"""An engine whose answers are odd: it speaks HTTP as no engine should.

    python -m benchmarks.front.odd_engine --port 8001

A request's prompt names the answer that it gets. Its metrics are odd by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from contextlib import suppress

MODEL = "odd"


def _whole(body: bytes, head: bytes = b"200 OK\r\ncontent-type: application/json") -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %b\r\n\r\n%b" % (
        head, length, body,
    )  # fmt: skip


_SOUND = b'{"choices": [{"text": "1"}], "usage": {"completion_tokens": 1}}'
_EARLY = b"HTTP/1.1 200 OK\r\ncontent-ty"
# By its name: an answer, and the status that the front's client is to get.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "sound": (_whole(_SOUND), "200"),
    "content type": (_whole(_SOUND, b"200 OK\r\ncontent-type: text/\xff\xfe"), "502"),
    "retry-after": (_whole(b"{}", "503 X\r\nretry-after: ²".encode()), "503"),
    "status 999": (_whole(b"{}", b"999 X"), "502"),
    "status 101": (b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", "502"),
    "broken chunk": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab\r\nX", "502"),
    "early end": (_EARLY, "502"),
}
_METRICS = (
    _whole(b"vllm:kv_cache_usage_perc 0\n", b"200 OK"),
    _whole(b"vllm:kv_cache_usage_perc 1e999\n", b"200 OK"),
    _whole(b"vllm:kv_cache_usage_perc\xff\x00 0\n\xc3\x28{}} \xe2\x82", b"200 OK"),
    _EARLY,
)


async def serve(port: int) -> None:
    """Serves until it is interrupted."""
    pages = itertools.cycle(_METRICS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get"):
                writer.write(next(pages))
            else:
                length = int(head.partition(b"content-length:")[2].split()[0])
                fields = json.loads(await reader.readexactly(length))
                writer.write(ANSWERS[fields["prompt"]][0])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
