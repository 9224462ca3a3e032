"""CuPy beside PyTorch: arrays of its own, and one that both share."""

import cupy
import torch


def main() -> None:
    """An array of 64 MiB of each, and a view of PyTorch's in CuPy."""
    tensor = torch.zeros(16 << 20, device="cuda")
    array = cupy.zeros(16 << 20, dtype=cupy.float32)
    shared = cupy.from_dlpack(tensor)
    shared += array
    print(shared.nbytes, cupy.get_default_memory_pool().used_bytes(), tensor.sum().item())


if __name__ == "__main__":
    main()
