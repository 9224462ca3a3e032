"""States in eight and four bits, and adapters: what is refused, and what is quantised or trained;
without torch and the libraries that do it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ullage.act.techniques import eight_bit_states, four_bit_states, lora
from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError


class Adam:
    """Stands for torch's."""


class AdamW:
    """Stands for torch's."""


GROUP = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (AdamW, {}, ""),
        (Adam, {"weight_decay": 0.0}, ""),
        (Adam, {"decoupled_weight_decay": True}, ""),
        (Adam, {}, "Adam adds weight decay to the gradient"),
        (AdamW, {"amsgrad": True}, "does not support amsgrad=True"),
        (AdamW, {"lr": SimpleNamespace(device="cuda")}, "the learning rate is a tensor"),
    ],
)
def test_settings_that_eight_bits_do_not_have_are_refused(
    kind: type[Any], changes: dict[str, Any], said: str
) -> None:
    group = {**GROUP, **changes}
    if not said:
        eight_bit_states._check(kind(), group)
        return
    with pytest.raises(PlanError, match=said):
        eight_bit_states._check(kind(), group)


class Quantised(SimpleNamespace):
    """A state in four bits, or a piece of one: positions stand for its codes and scales."""

    def __init__(self, codes: range, scale: range, *more: Any) -> None:
        super().__init__(codes=codes, scale=scale, qmap="qmap", signed=True, dtype="float32")
        self.shape = more[2] if more else (2 * len(codes),)

    def numel(self) -> int:
        return 2 * len(self.codes)


def test_four_bits_are_taken_apart_into_pieces_of_whole_blocks() -> None:
    block, most = four_bit_states._BLOCK, four_bit_states._AT_ONCE
    count = 2 * most + 3 * block
    whole = Quantised(range(count // 2), range(count // block))
    pieces = list(four_bit_states._pieces(whole))
    assert [elements for elements, _ in pieces] == [
        slice(0, most), slice(most, 2 * most), slice(2 * most, count),
    ]  # fmt: skip
    assert [code for _, piece in pieces for code in piece.codes] == list(whole.codes)
    assert [scale for _, piece in pieces for scale in piece.scale] == list(whole.scale)
    for elements, piece in pieces:
        assert piece.shape == (elements.stop - elements.start,)
        assert len(piece.scale) * block == piece.numel() == piece.shape[0]


class State(NamedTuple):
    """Stands for a tensor of an optimizer."""

    num_elements: int
    has_gaps: bool = False

    def numel(self) -> int:
        return self.num_elements

    def is_contiguous(self) -> bool:
        return not self.has_gaps


def test_small_and_odd_states_stay_as_they_are() -> None:
    assert four_bit_states._is_quantised(State(4096))
    for state in (State(4096 - 128), State(4096 + 1), State(4096, has_gaps=True)):
        assert not four_bit_states._is_quantised(state)


class Parameter:
    """Of a model."""

    grad = None

    def __init__(self) -> None:
        self.requires_grad = True

    def requires_grad_(self, requires_grad: object) -> None:
        self.requires_grad = bool(requires_grad)


def test_adapters_alone_are_trained_until_the_plan_is_undone() -> None:
    names = ("up.weight", "up.lora_A.default.weight", "up.lora_B.default.weight", "norm.weight")
    parameters = {name: Parameter() for name in names}
    weight, first, second, norm = parameters.values()
    model = SimpleNamespace(
        named_parameters=parameters.items, parameters=lambda: list(parameters.values())
    )
    groups = [{"params": [weight], "lr": 1.0}, {"params": [norm], "lr": 2.0}]
    optimizer = SimpleNamespace(param_groups=groups, state={})
    with Changes() as changes:
        lora._train_adapters(model, optimizer, changes)
        assert groups == [{"params": [first, second], "lr": 1.0}, {"params": [], "lr": 2.0}]
        assert [one.requires_grad for one in parameters.values()] == [False, True, True, False]
        optimizer.state[first] = {"step": 1}
    assert groups == [{"params": [weight], "lr": 1.0}, {"params": [norm], "lr": 2.0}]
    assert not optimizer.state


@pytest.mark.parametrize(
    ("states", "said"),
    [([], "it has 0 optimizers"), ([{}, {}], "it has 2"), ([{"a": {"step": 1}}], "has stepped")],
)
def test_adapters_need_one_optimizer_that_has_not_stepped(
    states: list[dict[str, Any]], said: str
) -> None:
    optimizers = [SimpleNamespace(state=state) for state in states]
    target: Any = SimpleNamespace(model=None, optimizers=optimizers)
    assert lora.LORA.apply is not None
    with pytest.raises(PlanError, match=said):
        lora.LORA.apply(target, Action("lora"))
