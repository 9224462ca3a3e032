"""The fork servers of one pytest process: torch on the phantom, torch without a GPU, and ullage."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.phantom.forking import client

import ullage
from ullage.ground.errors import UllageError
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.launch import LaunchOptions, make_environment
from ullage.players.phantom.torch_build import check_torch, find_torch

_MAX_CHARS = 80


def start_servers(
    python: Path, environment: Mapping[str, str], at_end: Callable[[Callable[[], object]], None]
) -> list[dict[str, Any]]:
    """Starts them, and describes them for `client.install`; none where there is no torch to start.

    Args:
        python: the interpreter that has torch.
        environment: what commands and programs are started with.
        at_end: calls what it is given when the tests are over, the last first.
    """
    # The path of a socket is 107 characters at most.
    place = "/tmp" if len(tempfile.gettempdir()) > _MAX_CHARS else None
    directory = Path(tempfile.mkdtemp(prefix="forking-", dir=place))
    at_end(lambda: shutil.rmtree(directory, ignore_errors=True))
    try:
        build = check_torch(find_torch(str(python)), LIBRARY_DIR)
        gpu = choose_device("h100-80gb")
        phantom = make_environment(directory, gpu, build, LaunchOptions(), environment)
    except (UllageError, OSError):  # which the tests find out, each by itself
        return []
    servers: list[dict[str, Any]] = []
    imported, ready = os.pipe()
    for name, interpreter, variables in (
        ("phantom", str(python), phantom),
        ("processor", str(python), environment),
        ("commands", sys.executable, environment),
    ):
        is_command = name == "commands"
        server = client.start_server(
            interpreter,
            "commands" if is_command else "programs",
            variables,
            directory / name,
            ready,
            package=str(Path(ullage.__file__).parent),
            hidden=[] if is_command else ["torch"],
            servers=list(servers),
        )
        at_end(server.wait)
        at_end(server.kill)
        servers.append(client.describe_server(interpreter, variables, directory / name))
    # Until each has closed its copy: what it imports is no part of the first test.
    os.close(ready)
    os.read(imported, 1)
    os.close(imported)
    return servers
