"""What is replaced comes back as the very object that was there."""

from __future__ import annotations

from ullage.players.inside.patches import Patches


class Owner:
    def method(self) -> str:
        return "own"


def test_undone_everything_is_what_it_was() -> None:
    before = dict(vars(Owner))
    owner, patches = Owner(), Patches()
    patches.replace(Owner, "method", lambda _self: "first")
    patches.replace(Owner, "method", lambda _self: "second")
    patches.replace(owner, "method", lambda: "of the object")
    patches.replace(Owner, "new", value := object())
    assert (owner.method(), Owner().method(), vars(Owner)["new"]) == (
        "of the object",
        "second",
        value,
    )
    assert len(patches.places) == 4
    assert patches.undo() == []
    assert dict(vars(Owner)) == before
    assert vars(owner) == {}


def test_what_others_have_replaced_since_stays_and_is_named() -> None:
    patches = Patches()
    original = Owner.method
    patches.replace(Owner, "method", lambda _self: "ours")
    theirs = lambda _self: "theirs"  # noqa: E731
    Owner.method = theirs  # type: ignore[method-assign]
    try:
        assert patches.undo() == ["Owner.method"]
        assert Owner().method() == "theirs"
    finally:
        Owner.method = original  # type: ignore[method-assign]
