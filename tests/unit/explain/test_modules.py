"""Which module an allocation belongs to: by its scope, or by the parameter that owns it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.owners.modules import (
    ModuleShare,
    attribute_modules,
    merge_numbered,
    share_by_module,
)
from ullage.log.blocks import read_blocks
from ullage.log.model import Record

Make = Callable[..., Record]


def modules(record: Record) -> dict[int, str | None]:
    """The module of each block by its size, which the scripts keep unique."""
    blocks = read_blocks(record)
    owners = attribute_modules(record, blocks)
    names = (*owners.names, None)
    return {
        int(size): names[number]
        for size, number in zip(blocks.size_bytes, owners.index, strict=True)
    }


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("F >layers.0 +7 f", "layers.0"),
        ("F > +7 f", ""),
        ("F >layers.0 +1 < +7 f", None),
        ("+7", None),
        ("F >layers.0 +1 >layers.1 +7 f", "layers.1"),
        ("F >layers.0 +7 -7 <", "layers.0"),
        # Whose parameter it is comes before where it was made.
        (">head +7 =parameter:layers.3.up.weight", "layers.3.up"),
        ("B >head +7 =gradient:layers.3.up.weight b", "layers.3.up"),
        ("O +7 =optimizer_state:head.bias o", "head"),
        ("+7 =parameter:weight", ""),
        ("+7 =buffer:norm.running_mean", "norm"),
        # What has no name, or is no parameter's, stays where it was made.
        (">layers.0 +7 =gradient", "layers.0"),
        (">layers.0 +7 =kv_cache:layers.1.cache", "layers.0"),
        ("+7 =gradient:a.weight =parameter:b.weight", "b"),
        ("+7 =parameter:b.weight =gradient:a.weight", "b"),
        # What several share belongs to what holds them all.
        ("+7 =gradient:layers.3.up.weight =gradient:layers.3.up.bias", "layers.3.up"),
        ("+7 =gradient:layers.3.up.weight =gradient:layers.3.norm.weight", "layers.3"),
        ("+7 =gradient:layers.3.weight =gradient:layers.31.weight", "layers"),
        ("+7 =gradient:head.weight =gradient:norm.weight =gradient:head.weight", ""),
    ],
)
def test_the_module_of_a_block(make_record: Make, script: str, module: str | None) -> None:
    assert modules(make_record(script))[7] == module


def test_a_record_without_modules_has_none(make_fields: Callable[..., dict[str, object]]) -> None:
    from ullage.log.reader import parse_record

    fields = make_fields("F +7 f")
    del fields["modules"], fields["events"]["scope"]  # type: ignore[attr-defined]
    assert modules(parse_record(fields)) == {7: None}


def test_a_scope_that_is_not_listed_is_no_module(make_record: Make) -> None:
    assert modules(make_record("F >layers.0 +7 f", modules=[])) == {7: None}


def test_shares_sum_to_what_is_live(make_record: Make) -> None:
    record = make_record(">a +5 +3 >b +4 -3 < +2")
    blocks = read_blocks(record)
    live = blocks.is_live(len(record.events) - 1)
    shares = share_by_module(attribute_modules(record, blocks), live, blocks.size_bytes)
    assert [(share.path, share.size_bytes) for share in shares] == [("a", 5), ("b", 4), (None, 2)]


def test_equal_layers_become_one_share() -> None:
    shares = [
        ModuleShare("layers.0.up", 1, 4),
        ModuleShare("layers.11.up", 1, 6),
        ModuleShare("layers.0.conv1", 1, 3),
        ModuleShare("head", 1, 2),
        ModuleShare(None, 1, 1),
    ]
    assert merge_numbered(shares) == (
        ModuleShare("layers.*.up", 2, 10),
        ModuleShare("layers.0.conv1", 1, 3),
        ModuleShare("head", 1, 2),
        ModuleShare(None, 1, 1),
    )
