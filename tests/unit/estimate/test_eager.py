"""Autograd without values: who holds what, and for how long, as in PyTorch's engine."""

from __future__ import annotations

from ullage.log.category import Category
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autograd import backward, checkpoint
from ullage.players.eager.training.eager.module import parameter
from ullage.players.eager.training.eager.tensor import BFLOAT16, FLOAT32, Tensor, empty

WIDTH, ROWS = 64, 32


def make_arena() -> Arena:
    """Without cuBLAS's workspace, which is not what is looked at here."""
    arena = Arena()
    arena.blas_workspace_bytes = 0
    return arena


def input_of(arena: Arena) -> Tensor:
    return empty(arena, (ROWS, WIDTH), FLOAT32, Category.INPUT)


def weight_of(arena: Arena) -> Tensor:
    return parameter(arena, WIDTH, WIDTH, dtype=FLOAT32)


def sigmoid(x: Tensor) -> Tensor:
    """It saves its output."""
    return F.elementwise(x, saves_input=False, saves_output=True)


def live(arena: Arena) -> int:
    """Bytes that are requested now."""
    log = arena.log
    return sum(size for index, size in enumerate(log.requested) if ~index not in log.events)


def births(arena: Arena, since: int) -> list[int]:
    """Sizes of what was made from a position on, in order."""
    log = arena.log
    return [log.requested[index] for index in log.events[since:] if index >= 0]


def test_a_leaf_takes_its_first_gradient_and_adds_the_next_in_place() -> None:
    arena = make_arena()
    weight, x = weight_of(arena), input_of(arena)
    backward(F.linear(x, weight))
    assert weight.grad is not None
    first = weight.grad.storage
    assert first.category is Category.GRADIENT
    before = live(arena)
    backward(F.linear(x, weight))
    assert weight.grad.storage is first
    assert live(arena) == before


def test_gradients_that_meet_are_added_in_place_where_nobody_else_holds_the_first() -> None:
    arena = make_arena()
    first, second, x = weight_of(arena), weight_of(arena), input_of(arena)
    middle = F.linear(x, first)
    out = F.add(F.linear(middle, second), F.linear(middle, second))
    since = arena.log.position
    backward(out)
    rows = ROWS * WIDTH * 4
    # The root's gradient; of each branch one of its input and one of its weight; none for the sum.
    assert births(arena, since).count(rows) == 3


def test_an_output_is_saved_without_the_graph_behind_it() -> None:
    arena = make_arena()
    weight, x = weight_of(arena), input_of(arena)
    before = live(arena)
    out = F.softmax(F.linear(x, weight))
    assert live(arena) == before + out.nbytes
    del out
    assert live(arena) == before


def test_a_checkpoint_keeps_its_input_alone() -> None:
    arena = make_arena()
    weights, x = [weight_of(arena) for _ in range(3)], input_of(arena)

    def layer(x: Tensor) -> Tensor:
        for weight in weights:
            x = F.softmax(F.linear(x, weight))
        return x

    before = live(arena)
    plain = layer(x)
    saved_bytes = live(arena) - before
    del plain
    checkpointed = checkpoint(layer, x)
    assert live(arena) - before == checkpointed.nbytes
    assert saved_bytes == 3 * checkpointed.nbytes


def test_a_checkpoint_is_made_again_up_to_the_last_thing_that_it_saved() -> None:
    arena = make_arena()
    first, second, x = weight_of(arena), weight_of(arena), input_of(arena)
    calls: list[str] = []

    def layer(x: Tensor) -> Tensor:
        calls.append("first")
        x = F.linear(x, first)
        calls.append("second")
        x = F.linear(x, second)
        calls.append("after")
        return F.scale(x)

    out = checkpoint(layer, x)
    assert calls == ["first", "second", "after"]
    since = arena.log.position
    backward(out)
    assert calls[3:] == ["first", "second"]
    rows = ROWS * WIDTH * 4
    # The root's gradient, scale's, what the first layer gives again, and that output's gradient;
    # the second layer's product is not made again.
    assert births(arena, since).count(rows) == 4
    del out
    assert first.grad is not None
    assert second.grad is not None


def test_selective_checkpointing_keeps_products_and_makes_the_rest_again() -> None:
    arena = make_arena()
    arena.is_selective = True
    weight, x = weight_of(arena), input_of(arena)
    before = live(arena)
    out = checkpoint(lambda x: sigmoid(F.linear(sigmoid(x), weight)), x)
    assert live(arena) - before == 2 * out.nbytes
    since = arena.log.position
    backward(out)
    # Again: the inner sigmoid, and the outer, whose input is the product that was kept. In the
    # backward pass itself: the root's gradient, and the gradient of the product.
    assert births(arena, since).count(out.nbytes) == 4


def test_autocast_casts_a_parameter_once_until_it_ends() -> None:
    arena = make_arena()
    weight, x = weight_of(arena), input_of(arena)
    with arena.autocasting(BFLOAT16), arena.recording(is_on=False):
        since = arena.log.position
        first = F.linear(x, weight)
        second = F.linear(first, weight)
        sizes = births(arena, since)
        assert first.dtype is second.dtype is BFLOAT16
        assert sizes.count(weight.numel * 2) == 1
        live_bytes = live(arena)
    assert live_bytes - live(arena) == weight.numel * 2
    assert F.softmax(input_of(arena)).dtype is FLOAT32


def test_autocast_takes_losses_and_norms_in_float32() -> None:
    arena = make_arena()
    x = empty(arena, (ROWS, WIDTH), BFLOAT16)
    with arena.autocasting(BFLOAT16):
        assert F.softmax(x).dtype is FLOAT32
        assert F.pow2(x).dtype is FLOAT32
        assert F.layer_norm(x, None, None).dtype is FLOAT32
