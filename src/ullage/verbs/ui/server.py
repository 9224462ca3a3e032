"""Serves the page on this machine alone, until it is interrupted."""

from __future__ import annotations

import gc
import secrets
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.ground.address import Address
from ullage.operate.doors.asgi_server import check_installed, listen, make_server

_ADDRESS: Final = "127.0.0.1"
_CONNECTIONS: Final = 64
_NEEDED: Final = ("httptools", "starlette", "uvicorn")


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
    check_installed("`ullage ui`", "ui", _NEEDED)
    from ullage.verbs.ui.app import make_app
    from ullage.verbs.ui.engine import find_python
    from ullage.verbs.ui.guard import ENTER

    token = secrets.token_urlsafe(24)
    with (
        listen(Address(_ADDRESS, port), "leave --port out to take a free one") as listener,
        tempfile.TemporaryDirectory(prefix="ullage-ui-") as scratch,
    ):
        bound_port = listener.getsockname()[1]
        app = make_app(
            port=bound_port, token=token, scratch=Path(scratch), python=python,
            vllm_python=find_python(vllm_python),
        )  # fmt: skip
        gc.freeze()  # what is loaded stays: no answer waits until all of it was looked through
        address = f"http://{_ADDRESS}:{bound_port}{ENTER}{token}"
        announce(address)
        if is_opened:  # requests wait until the server takes them
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it is ended
            make_server(app, _CONNECTIONS, grace_s=1).run(sockets=[listener])
