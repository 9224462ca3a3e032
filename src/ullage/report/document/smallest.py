"""The document of a search for a server, schema "ullage.search/1"."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from ullage.report.document.forecast import tiers_document
from ullage.serve.search.bounds import Judged
from ullage.serve.search.search import Searched, Server
from ullage.serve.search.worth import Worth
from ullage.serve.tiers import Tiers

SEARCH_SCHEMA: Final = "ullage.search/1"


def search_document(
    searched: Searched, worths: tuple[Worth, ...], capacity: float | None, tiers: Tiers | None
) -> dict[str, Any]:
    """The document; null: there is none."""
    order = searched.order
    return {
        "schema": SEARCH_SCHEMA,
        "command": list(order.command),
        "traffic": {"source": order.traffic.source, "num_requests": len(order.traffic)},
        "slo": asdict(order.slo),
        "target_frac": order.target_frac,
        "allowed": list(order.allowed),
        "best": None if searched.best is None else _server(searched.best),
        "runs": [_server(server) for server in searched.servers],
        "judged": [_judged(each) for each in searched.judged],
        "worths": [worth._asdict() for worth in worths],
        "capacity": capacity,
        "tiers": None if tiers is None else tiers_document(tiers),
    }


def _server(server: Server) -> dict[str, Any]:
    return {
        "gpu": server.candidate.gpu.slug,
        "num_gpus": server.candidate.num_gpus,
        "words": list(server.words),
        "forecast_frac": server.forecast_frac,
        "forecast_tokens": server.forecast_tokens,
        **asdict(server.run),
        "is_held": server.is_held,
    }


def _judged(judged: Judged) -> dict[str, Any]:
    candidate = judged.candidate
    return {
        "gpu": candidate.gpu.slug,
        "num_gpus": candidate.num_gpus,
        "flags": [candidate.flag(name) for name in candidate.chosen],
        "tokens": judged.tokens,
        "goodput_frac": judged.goodput_frac,
        "num_preemptions": judged.num_preemptions,
        "reason": judged.reason,
    }
