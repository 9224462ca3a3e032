"""Whatever is changed is put back, whatever happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.applying.changes import Changes


class Owner:
    """Has a method that an instance can hide."""

    def forward(self) -> str:
        return "its own"


def test_an_attribute_that_hid_the_class_is_gone_again() -> None:
    owner = Owner()
    with Changes() as changes:
        changes.set(owner, "forward", lambda: "ours")
        assert owner.forward() == "ours"
    assert owner.forward() == "its own"
    assert "forward" not in vars(owner)


def test_changes_of_one_attribute_are_undone_in_reverse() -> None:
    owner = SimpleNamespace(value=1)
    with Changes() as changes:
        changes.set(owner, "value", 2)
        changes.set(owner, "value", 3)
    assert owner.value == 1


def test_items_are_put_back_or_taken_out() -> None:
    group: dict[str, Any] = {"lr": 1}
    with Changes() as changes:
        changes.set_item(group, "lr", 2)
        changes.set_item(group, "fused", value=True)
        assert group == {"lr": 2, "fused": True}
    assert group == {"lr": 1}


def test_a_static_method_of_a_class_stays_one() -> None:
    class Kind:
        @staticmethod
        def name() -> str:
            return "static"

    with Changes() as changes:
        changes.set(Kind, "name", staticmethod(lambda: "ours"))
        assert Kind().name() == "ours"
    assert Kind().name() == "static"
    assert isinstance(vars(Kind)["name"], staticmethod)


def test_all_is_undone_after_an_exception() -> None:
    owner = SimpleNamespace(value=1)
    with pytest.raises(KeyError), Changes() as changes:
        changes.set(owner, "value", 2)
        raise KeyError
    assert owner.value == 1


def test_one_that_fails_does_not_keep_the_others_from_being_undone() -> None:
    owner, changes = SimpleNamespace(value=1), Changes()
    changes.set(owner, "value", 2)
    changes.on_undo(lambda: 1 / 0)
    changes.set(owner, "other", 3)
    with pytest.raises(ZeroDivisionError):
        changes.undo()
    assert vars(owner) == {"value": 1}


def test_hooks_are_removed() -> None:
    removed: list[bool] = []
    with Changes() as changes:
        changes.hook(SimpleNamespace(remove=lambda: removed.append(True)))
        assert not removed
    assert removed == [True]


def test_what_another_has_changed_meanwhile_is_told() -> None:
    owner, changes = SimpleNamespace(value=1), Changes()
    changes.set(owner, "value", 2)
    owner.value = 3
    with pytest.warns(UserWarning, match="'value' of a SimpleNamespace was changed"):
        changes.undo()
    assert owner.value == 1


def test_what_is_kept_stays_and_is_undone_once() -> None:
    owner, changes = SimpleNamespace(value=1), Changes()
    changes.set(owner, "value", 2)
    changes.keep()
    changes.undo()
    assert owner.value == 2
