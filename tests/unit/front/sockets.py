"""The front on a real socket, with stub engines behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from benchmarks.front.engine_model import EngineModel, Speed
from benchmarks.front.stub_engine import StubEngine

from ullage.ground.address import Address
from ullage.operate.doors.asgi_server import listen, make_server
from ullage.operate.front.proxy.app import FrontApp, make_front
from ullage.operate.front.proxy.upstream import Upstream
from ullage.operate.front.settings import load_front

KEYS = {"chat": "chat-" + "c" * 20, "hog": "hog-" + "h" * 20}
FAST = Speed(step_s=0.001, sequence_s=0, prompt_token_s=1e-6, cached_token_s=0)
PATIENCE_S = 60.0


@asynccontextmanager
async def serve_app(app: Any, port: int = 0, connections: int = 4096) -> AsyncIterator[int]:
    """Serves an application on loopback; gives the port."""
    listener = listen(Address("127.0.0.1", port), "")
    server = make_server(app, connections, grace_s=1)
    task = asyncio.create_task(server._serve([listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def until(is_there: Callable[[], bool]) -> None:
    """Waits for something, a minute at most."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_there():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_stub(blocks: int, speed: Speed, port: int = 0) -> AsyncIterator[Stub]:
    """A stub engine on a socket."""
    engine = StubEngine(EngineModel("stub", blocks, speed))
    task = asyncio.create_task(engine.run())
    try:
        async with serve_app(engine.app(), port) as own_port:
            yield Stub(engine, own_port)
    finally:
        task.cancel()


@asynccontextmanager
async def running_page(
    body: bytes, head: bytes = b"200 OK", length: int | None = None
) -> AsyncIterator[int]:
    """An engine that gives every request one answer, byte for byte; gives the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = str(len(body) if length is None else length).encode()
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %b\r\n\r\n%b" % (head, size, body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def move(upstream: Upstream, port: int) -> int:
    """Lets the engine be at another port; gives the port that it was at."""
    upstream.close()
    # A poll of the engine that is under way would give its connection back, and a request take it.
    upstream._idle = {}
    before = upstream.address
    upstream.address = replace(before, port=port)
    return before.port


@dataclass(frozen=True, slots=True)
class Stub:
    """A stub engine, and where it is."""

    engine: StubEngine
    port: int


@dataclass(frozen=True, slots=True)
class Setup:
    """All that runs."""

    app: FrontApp
    port: int
    stubs: list[Stub]
    client: httpx.AsyncClient

    async def ask(
        self, fields: dict[str, Any], tenant: str = "chat", path: str = "/v1/completions"
    ) -> httpx.Response:
        """A request with a tenant's key."""
        return await self.client.post(path, json={"model": "stub", **fields}, headers=key(tenant))

    @property
    def num_running(self) -> int:
        """What the policy believes to be in engines."""
        return self.app.board.admission.num_running


def key(tenant: str) -> dict[str, str]:
    """The header with a tenant's key."""
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def write_configuration(
    folder: Path, ports: list[int], blocks: int, more: str = "", engines_more: str = "",
    each_engine: str = "",
) -> Path:  # fmt: skip
    """A configuration: engines whose blocks have 16 tokens of a KiB, and two tenants."""
    for name, word in KEYS.items():
        (folder / name).write_text(word)
    engines = "".join(
        f'[front.engine.e{port}]\nurl = "http://127.0.0.1:{port}"\nmodels = "stub"\n'
        f'cache = "{blocks * 16}KiB"\ntoken_bytes = 1024\n{each_engine}'
        for port in ports
    )
    tenants = "".join(f'[front.tenant.{name}]\nkey_file = "{name}"\n' for name in KEYS)
    path = folder / "ullage.toml"
    engines += engines_more.replace("{port}", str(ports[0]))
    path.write_text(f"[front]\ncharacters_per_token = 4\n{more}\n{engines}\n{tenants}")
    return path


def run_scenario(
    folder: Path, scenario: Callable[[Setup], Awaitable[None]], *, blocks: int = 64,
    speed: Speed = FAST, engines: int = 1, more: str = "", engines_more: str = "",
    each_engine: str = "", connections: int = 4096,
) -> None:  # fmt: skip
    """Runs a scenario against a front with engines behind it; at its end nothing runs there."""

    async def all_of_it() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(2 * PATIENCE_S):
            stubs = [
                await stack.enter_async_context(running_stub(blocks, speed)) for _ in range(engines)
            ]
            ports = [stub.port for stub in stubs]
            settings = load_front(
                folder, write_configuration(folder, ports, blocks, more, engines_more, each_engine)
            )
            app = await stack.enter_async_context(make_front(settings))
            port = await stack.enter_async_context(serve_app(app, connections=connections))
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_S,
                    limits=httpx.Limits(max_connections=None),
                )
            )  # fmt: skip
            await scenario(Setup(app, port, stubs, client))
            await until(lambda: app.board.admission.num_running == 0)

    asyncio.run(all_of_it())
