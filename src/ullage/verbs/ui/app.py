"""The page's application: its files, and the answers to its requests.

    GET  /                       the page, and /assets/NAME
    GET  /enter/TOKEN            the first visit, which sets the cookie (guard.py)
    GET  /catalogue              GPUs, models and what can be chosen
    POST /estimate               an estimate
    POST /advice                 what else could be: GPUs, the largest that fits, what saves most
    GET  /check                  how the check is doing
    POST /check, /check/cancel   start it, on the phantom or in vLLM; end it
    POST /snapshots?name=NAME    a file
    POST /pages                  the page of one file, or of two compared
    GET  /pages/ID

Where the answer is that something cannot be, it is a sentence: {"problem": "..."}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ullage.ground.errors import SpecError, UllageError
from ullage.verbs.ui.advice import ask
from ullage.verbs.ui.answers import BadQuery, Query, answer, make_loop, read
from ullage.verbs.ui.catalogue import describe
from ullage.verbs.ui.check import Check
from ullage.verbs.ui.engine import HOW_TO_INSTALL, PROGRAM, make_task
from ullage.verbs.ui.guard import HEADERS, Guard, TooLarge, read_body
from ullage.verbs.ui.snapshots import Snapshots

_QUERY_BYTES: Final = 2**20
_TYPES: Final = {
    ".css": "text/css", ".js": "text/javascript", ".html": "text/html", ".svg": "image/svg+xml",
}  # fmt: skip
# Alone in an origin of its own: what the page of a snapshot shows comes from a file.
_PAGE_HEADERS: Final = {
    "content-security-policy": "sandbox allow-scripts allow-popups; default-src 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
}

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The numbers of one or two files."""

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Handlers:
    snapshots: Snapshots
    check: Check
    scratch: Path
    python: str | None
    vllm_python: str | None

    async def estimate(self, request: Request) -> Response:
        """Answers a query of the controls."""
        body, took_s = await run_in_threadpool(_answer, await _read_json(request))
        # Processor time: what else the machine does is not in it. benchmarks/speed/ui.py reads it.
        timing = {"server-timing": f"answer;dur={1000 * took_s:.2f}"}
        return Response(body, media_type="application/json", headers=timing)

    async def advise(self, request: Request) -> Response:
        """Answers with advice on other choices."""
        return Response(await ask(await _read_json(request)), media_type="application/json")

    async def start_check(self, request: Request) -> Response:
        """Starts a check by a real engine: vLLM for a server, else PyTorch on the phantom."""
        query = read(Query, await _read_json(request), "the query")
        if query.serve is not None:
            if self.vllm_python is None:
                raise SpecError(HOW_TO_INSTALL)
            order: object = [make_task(query.find_model().config, query.estimate_serving())]
            command = [self.vllm_python, str(PROGRAM)]
        else:
            command = [sys.executable, "-m", "ullage.verbs.ui.check_child"]
            order = {**make_loop(query), "python": self.python}
        await self.check.start(command, order, scratch=self.scratch)
        return JSONResponse(self.check.state)

    async def show_check(self, request: Request) -> Response:
        del request
        return JSONResponse(self.check.state)

    async def cancel_check(self, request: Request) -> Response:
        del request
        await self.check.cancel()
        return JSONResponse(self.check.state)

    async def add_snapshot(self, request: Request) -> Response:
        """Stores an uploaded file."""
        name = request.query_params.get("name", "snapshot.pickle")
        return JSONResponse({"id": await self.snapshots.add(name, request.stream())})

    async def make_page(self, request: Request) -> Response:
        """Makes the page of one file, or of two compared."""
        chosen = read(_Chosen, await _read_json(request), "the query")
        page = await run_in_threadpool(self.snapshots.make_page, chosen.files)
        return JSONResponse({"page": f"/pages/{page.id}"})

    async def show_page(self, request: Request) -> Response:
        path = self.snapshots.find_page(request.path_params["id"])
        if path is None:
            raise HTTPException(404)
        return Response(path.read_bytes(), media_type="text/html", headers=_PAGE_HEADERS)


def make_app(
    *, port: int, token: str, scratch: Path, python: str | None = None,
    vllm_python: str | None = None,
) -> Starlette:  # fmt: skip
    """The application.

    Args:
        port: that it is served on.
        token: that each visitor must bring.
        scratch: a directory of its own.
        python: the interpreter in which checks run; None is the one that runs this.
        vllm_python: the interpreter that has vLLM; None: there is none.
    """
    handlers = _Handlers(Snapshots(scratch), Check(), scratch, python, vllm_python)
    catalogue = json.dumps(describe(python, vllm_python)).encode()

    async def show_catalogue(request: Request) -> Response:
        del request
        return Response(catalogue, media_type="application/json")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        await handlers.check.cancel()

    app = Starlette(
        routes=[
            *(_route(path, _make_sender(*asset)) for path, asset in _load_assets().items()),
            _route("/catalogue", show_catalogue),
            _route("/estimate", handlers.estimate, "POST"),
            _route("/advice", handlers.advise, "POST"),
            _route("/check", handlers.show_check),
            _route("/check", handlers.start_check, "POST"),
            _route("/check/cancel", handlers.cancel_check, "POST"),
            _route("/snapshots", handlers.add_snapshot, "POST"),
            _route("/pages", handlers.make_page, "POST"),
            _route("/pages/{id:str}", handlers.show_page),
        ],
        exception_handlers={UllageError: _tell, HTTPException: _tell_http, Exception: _tell_bug},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.add_middleware(Guard, port=port, token=token)
    return app


def _route(path: str, handler: Handler, method: str = "GET") -> Route:
    return Route(path, handler, methods=[method])


def _load_assets() -> dict[str, tuple[bytes, str]]:
    """Each path, and what is there: the page's own files, and those it shares with reports."""
    own = files("ullage.verbs.ui") / "assets"
    assets = [file for file in own.iterdir() if Path(file.name).suffix in _TYPES]
    shared = files("ullage.answers") / "assets"
    names = ("style.css", "theme.js", "format.js", "scale.js", "timeline.js")
    assets += [shared / name for name in names]
    loaded = {
        f"/assets/{file.name}": (file.read_bytes(), _TYPES[Path(file.name).suffix])
        for file in assets
    }
    loaded["/"] = loaded.pop("/assets/page.html")
    return loaded


def _make_sender(content: bytes, kind: str) -> Handler:
    async def send(request: Request) -> Response:
        del request
        return Response(content, media_type=kind)

    return send


def _answer(query: object) -> tuple[bytes, float]:
    began_s = time.thread_time()
    body = json.dumps(answer(query)).encode()
    return body, time.thread_time() - began_s


async def _read_json(request: Request) -> Any:  # noqa: ANN401
    body = await read_body(request, _QUERY_BYTES)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadQuery(f"the request is not JSON: {error}") from None


async def _tell(request: Request, error: Exception) -> Response:
    del request
    status = 413 if isinstance(error, TooLarge) else 400 if isinstance(error, BadQuery) else 200
    return JSONResponse({"problem": str(error)}, status)


async def _tell_http(request: Request, error: Exception) -> Response:
    del request
    status = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse("ullage: there is nothing here\n", status)


async def _tell_bug(request: Request, error: Exception) -> Response:
    """The traceback is on the terminal. The answer does not pass the guard, so it has its headers
    from here.
    """
    del request
    text = f"this is a mistake in ullage, please report it: {type(error).__name__}: {error}"
    return JSONResponse({"problem": text}, 500, headers=HEADERS)
