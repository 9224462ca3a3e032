"""The exporter's application: GET /metrics, and GET /-/healthy, which says nothing of the machine.

ExporterApp(exposition, token=None, is_local=True, max_age_s=30.0)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from ullage.operate.doors.access import check_local, find_holder, header
from ullage.operate.doors.refusal import Refusal, send_refusal, send_whole
from ullage.operate.watch.exporter.exposition import Exposition, Page

_HEALTHY: Final = Page("text/plain; charset=utf-8", b"healthy\n")


@dataclass(frozen=True, slots=True)
class ExporterApp:
    """Answers scrapes.

    Attributes:
        exposition: what is served.
        token: that a scrape has to bring; None: none.
        is_local: whether only this machine is answered, where there is no token.
        max_age_s: the age of the last sample up to which the exporter is healthy.
    """

    exposition: Exposition
    token: bytes | None
    is_local: bool
    max_age_s: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, whatever it is."""
        if scope["type"] != "http":
            return
        try:
            page = await self._page(scope)
            await send_whole(send, 200, page.body, page.content_type.encode())
        except Refusal as refusal:
            await send_refusal(send, receive, refusal)

    async def _page(self, scope: Scope) -> Page:
        if scope["method"] != "GET":
            raise Refusal(405, "expected GET")
        if scope["path"] == "/-/healthy":
            age_s = self.exposition.age_s
            if age_s > self.max_age_s:
                raise Refusal(503, f"no sample for {age_s:.0f} s")
            return _HEALTHY
        if self.token is not None:
            find_holder(scope, {"": self.token}, "the token")
        elif self.is_local:
            check_local(scope, "give --token-file FILE")
        if scope["path"] != "/metrics":
            raise Refusal(404, "there are /metrics and /-/healthy")
        accept = (header(scope, b"accept") or b"").decode("latin-1")
        page = await asyncio.to_thread(self.exposition.page, accept)
        if page is None:
            raise Refusal(503, "there is no sample yet")
        return page
