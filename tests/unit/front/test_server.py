"""The socket that the front listens on."""

from __future__ import annotations

import socket
from pathlib import Path

from ullage.front.proxy.server import _listen
from ullage.front.settings import load_front


def test_the_end_of_an_answer_waits_for_no_acknowledgement(tmp_path: Path) -> None:
    """Connections send small pieces at once, whoever accepts them."""
    (tmp_path / "ullage.toml").write_text(
        '[front]\nlisten = "127.0.0.1:0"\n[front.engine.a]\nurl = "http://127.0.0.1:1"\n'
        'models = "m"\ncache = "1GiB"\ntoken_bytes = 1\n[front.tenant.a]\n'
    )
    with (
        _listen(load_front(tmp_path)) as listener,
        socket.create_connection(listener.getsockname(), 5),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
