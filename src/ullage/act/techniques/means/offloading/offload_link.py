"""Asynchronous copies between a device and the host, and the waits that they need.

All device memory belongs to the stream that the program computes on. A copy starts when that stream
reaches the point where the copy was requested. After `wait`, the source may be freed and the
destination may be read on the program's stream.
"""

from __future__ import annotations

from typing import Any, Protocol

from ullage.act.techniques.means.offloading.pinned import Pinned


class Link(Protocol):
    """Copies bytes from a device to the host and back. Bytes are tensors of uint8."""

    def host_bytes(self, num_bytes: int) -> Any:
        """Host memory that lives as long as this link."""

    def device_bytes(self, num_bytes: int, device: Any) -> Any:
        """Device memory that belongs to the program's stream."""

    def copy_out(self, host: Any, device: Any) -> Any:
        """Starts a copy to the host, and returns its mark."""

    def copy_in(self, device: Any, host: Any) -> Any:
        """Starts a copy to the device, and returns its mark."""

    def wait(self, mark: Any) -> None:
        """Makes the program's stream wait until a copy has ended."""

    def settle(self) -> None:
        """Waits until the host can read what was copied to it."""


def bytes_of(tensor: Any) -> Any:
    """The whole storage of a tensor, as bytes."""
    import torch

    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def make_link(kind: str) -> Link:
    """A link to devices of one type, for example "cuda"."""
    return CudaLink() if kind == "cuda" else HostLink()


class CudaLink:
    """A link through pinned memory and the two copy engines of a GPU."""

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
        """Starts a copy on the stream for copies to the host."""
        return self._copy(host, device, self._of(device.device)[0])

    def copy_in(self, device: Any, host: Any) -> Any:
        """Starts a copy on the stream for copies to the device."""
        return self._copy(device, host, self._of(device.device)[1])

    def wait(self, mark: Any) -> None:
        """Makes the stream that requested the copy wait, and the current stream."""
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
    """A link within host memory: each copy has ended when its call returns."""

    def host_bytes(self, num_bytes: int) -> Any:
        """Ordinary memory."""
        return self.device_bytes(num_bytes, "cpu")

    def device_bytes(self, num_bytes: int, device: Any) -> Any:
        """Ordinary memory."""
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def copy_out(self, host: Any, device: Any) -> Any:
        """Copies at once."""
        host.copy_(device)

    def copy_in(self, device: Any, host: Any) -> Any:
        """Copies at once."""
        device.copy_(host)

    def wait(self, mark: Any) -> None:
        """Nothing to wait for."""

    def settle(self) -> None:
        """Nothing to wait for."""
