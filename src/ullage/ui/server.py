"""Serves the page on this machine alone, until it is interrupted."""

from __future__ import annotations

import gc
import importlib.util
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.errors import EnvironmentProblem, SpecError

_ADDRESS: Final = "127.0.0.1"
_NEEDED: Final = ("starlette", "uvicorn")


def serve(
    *,
    port: int = 0,
    python: str | None = None,
    vllm_python: str | None = None,
    is_opened: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Args:
        port: on 127.0.0.1; 0 is any that is free.
        python: the interpreter with PyTorch in which checks on the phantom run.
        vllm_python: the interpreter with vLLM in which servers are checked; None: this one, where
            it has vLLM.
        is_opened: open it in the user's browser.
        announce: gets the address, with the token in it.

    Raises:
        EnvironmentProblem: what the page's server needs is not installed.
        SpecError: the port is taken.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"`ullage ui` needs {missing[0]}, which is not installed; install it with: "
            "pip install 'ullage[ui]'"
        )
    import uvicorn

    from ullage.ui.app import make_app
    from ullage.ui.engine import find_python
    from ullage.ui.guard import ENTER

    token = secrets.token_urlsafe(24)
    with _listen(port) as listener, tempfile.TemporaryDirectory(prefix="ullage-ui-") as scratch:
        bound_port = listener.getsockname()[1]
        app = make_app(
            port=bound_port, token=token, scratch=Path(scratch), python=python,
            vllm_python=find_python(vllm_python),
        )  # fmt: skip
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, date_header=False,
            ws="none", timeout_graceful_shutdown=1,
        )  # fmt: skip
        gc.freeze()  # what is loaded stays: no answer waits until all of it was looked through
        address = f"http://{_ADDRESS}:{bound_port}{ENTER}{token}"
        announce(address)
        if is_opened:  # requests wait until the server takes them
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it is ended
            uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_ADDRESS, port))
    except OSError as error:
        raise SpecError(
            f"port {port} cannot be listened on ({error}); leave --port out to take a free one"
        ) from None
