"""The part of the document of `explain` that needs a run recorded by ullage."""

from __future__ import annotations

from ullage.explain.owners.dead_weight import DeadWeight
from ullage.explain.rules.case import Case, category_of
from ullage.explain.rules.lives import when_used
from ullage.explain.transfers import Transfers
from ullage.ground.protocol.plain import document_of
from ullage.verbs.document.fields import Document
from ullage.verbs.views.module_names import name_module

_MAX_DEAD_IN_DOCUMENT = 200


def recorded_document(case: Case) -> Document | None:
    """The part of the document; None for a snapshot that ullage did not write."""
    recorded = case.device.recorded
    if recorded is None:
        return None
    tokens, transfers, pinned = recorded.tokens, recorded.transfers, recorded.pinned
    return {
        "dead": None if recorded.dead is None else _dead(case, recorded.dead),
        "transfers": None if transfers is None
        else [_transfer(case, copies) for copies in transfers],
        "pinned_bytes": None if pinned is None else pinned.size_bytes.tolist(),
        "tokens": None if tokens is None else {
            **document_of(tokens),
            "sites": [case.report.sites.names[site] for site in tokens.sites],
        },
    }  # fmt: skip


def _dead(case: Case, dead: DeadWeight) -> Document:
    modules = case.device.owners.modules
    return {
        "bytes": dead.size_bytes,
        "num_blocks": len(dead.blocks),
        "without_bytes": dead.lower_peak_bytes,
        "blocks": [
            {
                "bytes": int(case.size_bytes[block]),
                "category": category_of(case, block).value,
                "module": None if modules is None or modules.index[block] < 0
                else name_module(modules.names[modules.index[block]]),
                "site": case.site(block),
                "last_use_event": int(dead.last_use[block]),
                "last_used": when_used(case, int(dead.last_use[block])),
                "free_event": int(case.device.replay.blocks.death[block]),
            }
            for block in dead.blocks[:_MAX_DEAD_IN_DOCUMENT].tolist()
        ],
    }  # fmt: skip


def _transfer(case: Case, transfers: Transfers) -> Document:
    return {
        "to": "device" if transfers.is_to_device else "host",
        **document_of(transfers),
        "sites": sorted({case.site(block) for block in transfers.blocks}),
    }
