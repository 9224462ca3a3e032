"""Copies between a device and the host, on streams of their own, and who has to wait for them.

All memory of the device belongs to the stream that the program computes on. A copy starts when that
stream has come to where it was asked for. What it reads or writes may be freed, and what it wrote
may be read, after the program's stream was told to wait for it.
"""

from __future__ import annotations

from typing import Any, Protocol

from ullage.techniques.means.pinned import Pinned


class Link(Protocol):
    """How bytes get from a device to the host and back. Bytes are tensors of uint8."""

    def host_bytes(self, num_bytes: int) -> Any:
        """Memory of the host, for as long as this link lives."""

    def device_bytes(self, num_bytes: int, device: Any) -> Any:
        """Memory of a device, of the program's stream."""

    def copy_out(self, host: Any, device: Any) -> Any:
        """Starts a copy to the host, and returns its mark."""

    def copy_in(self, device: Any, host: Any) -> Any:
        """Starts a copy to the device, and returns its mark."""

    def wait(self, mark: Any) -> None:
        """Has the program's stream wait until a copy has ended."""

    def settle(self) -> None:
        """Waits until the host can read what was copied to it."""


def bytes_of(tensor: Any) -> Any:
    """The whole storage of a tensor, as bytes."""
    import torch

    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def make_link(kind: str) -> Link:
    """A link to devices of a type, such as "cuda"."""
    return CudaLink() if kind == "cuda" else HostLink()


class CudaLink:
    """A link by the two copy engines of a GPU, through pinned memory."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._pinned = Pinned(pin=True)
        self._streams: dict[Any, tuple[Any, Any]] = {}

    def host_bytes(self, num_bytes: int) -> Any:
        """Pinned memory."""
        return self._pinned.empty(num_bytes)

    def device_bytes(self, num_bytes: int, device: Any) -> Any:
        """Memory of the device's current stream."""
        return self._torch.empty(num_bytes, dtype=self._torch.uint8, device=device)

    def copy_out(self, host: Any, device: Any) -> Any:
        """Starts a copy to the host on the stream for these."""
        return self._copy(host, device, self._of(device.device)[0])

    def copy_in(self, device: Any, host: Any) -> Any:
        """Starts a copy to the device on the stream for these."""
        return self._copy(device, host, self._of(device.device)[1])

    def wait(self, mark: Any) -> None:
        """Has the stream that asked for the copy wait, and the current one."""
        event, program = mark
        for stream in {program, self._torch.cuda.current_stream(program.device)}:
            stream.wait_event(event)

    def settle(self) -> None:
        """Waits for the streams of copies to the host."""
        for out, _ in self._streams.values():
            out.synchronize()

    def _of(self, device: Any) -> tuple[Any, Any]:
        if device not in self._streams:
            stream = self._torch.cuda.Stream
            self._streams[device] = stream(device), stream(device)
        return self._streams[device]

    def _copy(self, to: Any, of: Any, stream: Any) -> Any:
        program = self._torch.cuda.current_stream(stream.device)
        stream.wait_stream(program)
        with self._torch.cuda.stream(stream):
            to.copy_(of, non_blocking=True)
            return stream.record_event(), program


class HostLink:
    """The same between two places in the host's memory: each copy has ended when it returns."""

    def host_bytes(self, num_bytes: int) -> Any:
        """Memory like any other."""
        return self.device_bytes(num_bytes, "cpu")

    def device_bytes(self, num_bytes: int, device: Any) -> Any:
        """Memory like any other."""
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def copy_out(self, host: Any, device: Any) -> Any:
        """Copies at once."""
        host.copy_(device)

    def copy_in(self, device: Any, host: Any) -> Any:
        """Copies at once."""
        device.copy_(host)

    def wait(self, mark: Any) -> None:
        """There is nothing to wait for."""

    def settle(self) -> None:
        """There is nothing to wait for."""
