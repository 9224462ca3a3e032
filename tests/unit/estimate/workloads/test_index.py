"""Indexes of embeddings: bytes, shards, and the tier on which each part lies."""

from __future__ import annotations

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.units import GIB
from ullage.players.eager.term import Verdict
from ullage.players.eager.workloads.index import Index, Tiers, estimate_index, parse_index
from ullage.players.eager.workloads.option_values import Settings, split_count


# Bytes of faiss-cpu 1.15.1, as it writes indexes of random vectors.
@pytest.mark.parametrize(
    ("text", "faiss"),
    [
        ("flat:vectors=20000,width=128", 10_240_045),
        ("hnsw:vectors=20000,width=128,links=32", 15_682_530),
        ("hnsw:vectors=20000,width=96,links=16", 10_563_834),
        ("ivf:vectors=20000,width=128,lists=256", 10_533_259),
        ("ivfpq:vectors=20000,width=128,lists=256,codes=16", 744_372),
    ],
)
def test_bytes_are_those_of_faiss(text: str, faiss: int) -> None:
    index, tiers, shards = parse_index(f"{text},headroom=0%", None)
    assert estimate_index(index, tiers, shards).places[0].bytes == pytest.approx(faiss, rel=0.005)


def test_shards_share_the_vectors() -> None:
    index = Index("flat", 1001, 8)
    one, four = (estimate_index(index, Tiers(), shards).places[0].bytes for shards in (1, 4))
    assert (one, four) == (round(1.2 * 1001 * 32), round(1.2 * 251 * 32))


def test_what_is_read_most_lies_on_the_fastest_tier_with_room_for_it() -> None:
    index = Index("ivfpq", 10**8, 768, lists=65536, codes=96, is_reranked=True)
    estimate = estimate_index(index, Tiers(24 * GIB, 64 * GIB, 1024 * GIB))
    where = {term.name: place.name for place in estimate.places for term in place.terms}
    assert where == {
        "centroids and codebooks": "GPU",
        "codes": "GPU",
        "whole vectors, for ranking again": "NVMe",
    }
    assert estimate.verdict is Verdict.FITS


def test_what_no_tier_holds_does_not_fit() -> None:
    estimate = estimate_index(Index("flat", 10**8, 768), Tiers(GIB, 2 * GIB))
    assert estimate.places[-1].name == "host"
    assert estimate.verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hnsw:width=8", "vectors is missing"),
        ("tree:vectors=8,width=8", "expected flat, hnsw, ivf, ivfpq"),
        ("hnsw:vectors=8,width=8,speed=2", "found 'speed', expected one of"),
        ("hnsw:vectors=8,vectors=8", "given twice"),
        ("hnsw:vectors", "expected name=value"),
        ("hnsw:vectors=1.5,width=8", "expected a number from 1 on"),
        ("ivfpq:vectors=8,width=100,codes=64", "does not divide width=100"),
        ("flat:vectors=8,width=8,rerank=on", "holds whole vectors already"),
        ("flat:vectors=8,width=8,headroom=much", "expected such as 20%"),
    ],
)
def test_impossible_indexes_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        index, tiers, shards = parse_index(text, None)
        estimate_index(index, tiers, shards)


def test_settings_read_counts_sizes_and_switches() -> None:
    settings = Settings.parse("--x", "kind:a=1.5K,b=2GiB,c=on")
    assert (settings.kind, settings.count("a"), settings.size("b")) == ("kind", 1500, 2 * GIB)
    assert settings.switch("c", "off")
    settings.check()
    assert (split_count("--x", "name:4"), split_count("--x", "name")) == (
        ("name", 4),
        ("name", None),
    )
