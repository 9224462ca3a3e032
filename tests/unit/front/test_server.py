"""The socket that the front listens on."""

from __future__ import annotations

import socket

from ullage.ground.address import Address
from ullage.operate.doors.asgi_server import listen


def test_the_end_of_an_answer_waits_for_no_acknowledgement() -> None:
    """Connections send small pieces at once, whoever accepts them."""
    with (
        listen(Address("127.0.0.1", 0), "") as listener,
        socket.create_connection(listener.getsockname(), 5),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
