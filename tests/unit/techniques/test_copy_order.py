"""What waits for what when states and activations are copied, on streams that only keep count.

A stream knows what comes before whatever it is given next; an event, what came before it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.means.offloading.offload_link import CudaLink
from ullage.act.techniques.optimizer_offload import _HostStore


class Stream:
    """A stream, as the set of what comes before its next work."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.device = device
        self.past: frozenset[str] = frozenset()

    def work(self, name: str) -> None:
        self.past |= {name}

    def wait_stream(self, other: Stream) -> None:
        self.past |= other.past

    def record_event(self) -> SimpleNamespace:
        return SimpleNamespace(past=self.past)

    def wait_event(self, event: SimpleNamespace) -> None:
        self.past |= event.past


class Tensor:
    """A tensor that notes what came before each copy into it."""

    def __init__(self, gpu: Gpu, device: str) -> None:
        self.gpu = gpu
        self.device: Any = SimpleNamespace(type=device) if device == "cpu" else device
        self.is_cuda = device != "cpu"
        self.before_copy: frozenset[str] | None = None

    def numel(self) -> int:
        return 2

    def copy_(self, _: Tensor, *, non_blocking: bool = False) -> None:
        assert non_blocking, "the host would wait"
        self.before_copy = self.gpu.current.past
        self.gpu.current.work(f"copy {id(self)}")


class Gpu:
    """What of torch the copies use, with one GPU."""

    def __init__(self) -> None:
        self.program = self.current = Stream()
        self.cuda = SimpleNamespace(
            Stream=Stream, stream=self.stream, current_stream=lambda _=None: self.current
        )

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def empty_like(self, _: Tensor, *, device: str) -> Tensor:
        return Tensor(self, device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu)
    return gpu


def has_ended(gpu: Gpu, tensor: Tensor) -> bool:
    """Whether the program's stream has waited for the copy into a tensor."""
    return f"copy {id(tensor)}" in gpu.program.past


@pytest.mark.parametrize("direction", ["copy_in", "copy_out"])
def test_an_activation_is_copied_after_it_was_made_and_beside_the_program(
    gpu: Gpu, direction: str
) -> None:
    link = CudaLink()
    to, of = Tensor(gpu, "cuda:0"), Tensor(gpu, "cuda:0")
    gpu.program.work("made")
    mark = getattr(link, direction)(to, of)
    assert to.before_copy == {"made"}
    assert not has_ended(gpu, to)
    link.wait(mark)
    assert has_ended(gpu, to)


def test_the_stream_that_asked_for_a_copy_waits_even_when_another_is_current(gpu: Gpu) -> None:
    link = CudaLink()
    to = Tensor(gpu, "cuda:0")
    mark = link.copy_in(to, Tensor(gpu, "cuda:0"))
    with gpu.stream(Stream()):
        link.wait(mark)
        assert f"copy {id(to)}" in gpu.current.past
    assert has_ended(gpu, to)


def test_states_are_there_when_their_part_begins(gpu: Gpu) -> None:
    store, parameter = _HostStore(set()), Tensor(gpu, "cuda:0")
    gpu.program.work("freed")
    fetched = store.fetch({parameter: {"moment": Tensor(gpu, "cpu")}})
    arriving = fetched[parameter]["moment"]
    assert arriving.before_copy == {"freed"}
    assert not has_ended(gpu, arriving)
    store.begin()
    assert has_ended(gpu, arriving)


def test_states_leave_while_the_next_part_is_stepped_and_no_longer(gpu: Gpu) -> None:
    store, parameters = _HostStore(set()), [Tensor(gpu, "cuda:0") for _ in range(3)]
    host_states = [Tensor(gpu, "cpu") for _ in parameters]
    for index, (parameter, home) in enumerate(zip(parameters, host_states, strict=True)):
        gpu.program.work(f"step {index}")
        store.keep({parameter: {"moment": Tensor(gpu, "cuda:0")}}, {parameter: {"moment": home}})
        assert home.before_copy is not None and f"step {index}" in home.before_copy
    assert [has_ended(gpu, home) for home in host_states] == [True, True, False]
    store.end()
    assert has_ended(gpu, host_states[2])
