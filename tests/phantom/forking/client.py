"""Forks what tests start with `subprocess` from processes that have imported what takes long: torch
for programs, ullage for commands.

Most of a test's time is imports. `ForkedProcess` is a Popen that asks a fork server (see
site/sitecustomize.py) for the process where one has been started with the same interpreter and the
same settings of what is read before a program's first line; else it is a plain Popen. Forked or
not, a process does the same: test_forking.py compares them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAX_BYTES = 1 << 20
# Variables of which each process may have its own: nothing reads them before the program's first
# line, or the server follows them.
OWN = (
    "ULLAGE_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONPATH", "PATH", "PWD",
    "OLDPWD", "HOME", "NO_COLOR", "COLUMNS", "PYTEST_", "LIBRARY_PATH", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "CUDA_VISIBLE_DEVICES", "RANK",
    "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_", "NODE_RANK", "FORK_SERVER",
)  # fmt: skip
_plain = subprocess.Popen
_servers: list[dict[str, Any]] = []


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What may be read before a program's first line.

    Of the allocator's options torch reads its kind when it is loaded, the rest when it is used.
    """
    return {
        name: text for name, text in environment.items()
        if not name.startswith(OWN) or (name.endswith("ALLOC_CONF") and "backend" in text)
    }  # fmt: skip


def start_server(
    python: str,
    prepare: str,
    environment: Mapping[str, str],
    address: Path,
    ready: int,
    **more: Any,
) -> subprocess.Popen[bytes]:
    """Starts a server that ends with this process.

    It closes the descriptor `ready` when it has imported all.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(64)
        order = {
            "listener": listener.fileno(), "paths": [str(HERE)], "prepare": prepare, "hidden": [],
            "ready": ready, **more,
        }  # fmt: skip
        path = environment.get("PYTHONPATH")
        path = f"{HERE / 'site'}{os.pathsep}{path}" if path else str(HERE / "site")
        return _plain(
            [python, str(HERE / "the program to come")],
            env={**environment, "PYTHONPATH": path, "FORK_SERVER": json.dumps(order)},
            pass_fds=(listener.fileno(), ready),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )


def describe_server(python: str, environment: Mapping[str, str], address: Path) -> dict[str, Any]:
    """What is asked of a server, and where."""
    return {"python": python, "settings": settings(environment), "address": str(address)}


def install(servers: list[dict[str, Any]]) -> None:
    """From now on these are asked; none: what is started is started afresh."""
    _servers[:] = servers
    subprocess.Popen = ForkedProcess if servers else _plain  # type: ignore[misc]


def servers() -> list[dict[str, Any]]:
    """Those that are asked."""
    return list(_servers)


def num_forked() -> int:
    """How many processes of this one have been forked."""
    return ForkedProcess.num_forked


class ForkedProcess(subprocess.Popen[Any]):
    """A process that is forked from a server where there is one for it."""

    num_forked = 0
    is_forked = False
    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, *others: Any) -> None:
        (executable, preexec, _close, pass_fds, cwd, env, _info, _flags, shell, p2cread, p2cwrite,
         c2pread, c2pwrite, errread, errwrite, _restore, gid, gids, uid, umask, is_session,
         group) = others  # fmt: skip
        environment = dict(os.environ if env is None else env)
        words = [args] if isinstance(args, str) else [os.fspath(word) for word in args]
        is_usual = not shell and not preexec and executable is None and group == -1
        is_usual &= gid is None and gids is None and uid is None and umask == -1
        server = _find(words, environment) if is_usual else None
        if server is None:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        streams = [
            number if number != -1 else at
            for at, number in enumerate((p2cread, c2pwrite, errwrite))
        ]
        order = {
            "arguments": words[1:], "environment": environment, "is_session": bool(is_session),
            "directory": str(Path.cwd() / os.fsdecode(cwd or ".")),
            "files": [0, 1, 2, *pass_fds],
        }  # fmt: skip
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(server["address"])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
            socket.send_fds(connection, [json.dumps(order).encode()], [*streams, *pass_fds])
            answer = json.loads(connection.recv(MAX_BYTES))
        except (OSError, ValueError):  # it is gone
            connection.close()
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        self.pid, self._child_created, self._connection = answer["pid"], True, connection
        self.is_forked = True
        ForkedProcess.num_forked += 1
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        try:
            flags = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0
            text = self._connection.recv(MAX_BYTES, flags)
        except BlockingIOError:
            return 0, 0
        except OSError:
            text = b""
        self._connection.close()
        return self.pid, json.loads(text)["status"] if text else 9

    def _internal_poll(self, *arguments: Any, **keywords: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*arguments, **keywords)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _find(words: list[str], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The server that can become this process."""
    if len(words) < 2 or (words[1].startswith("-") and words[1] not in ("-c", "-m")):
        return None  # options of the interpreter
    found = settings(environment)
    for server in _servers:
        if server["python"] == words[0] and server["settings"] == found:
            return server
    return None
