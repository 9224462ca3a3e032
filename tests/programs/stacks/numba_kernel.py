"""A kernel of numba-cuda on PyTorch's tensors."""

import torch
from numba import cuda


@cuda.jit
def add_one(values):
    """One is added to each number."""
    place = cuda.grid(1)
    if place < values.size:
        values[place] += 1


def main() -> None:
    """A tensor of PyTorch's, and an array of numba's own."""
    tensor = torch.zeros(1 << 20, device="cuda")
    add_one[4096, 256](cuda.as_cuda_array(tensor))
    array = cuda.device_array(1 << 20, dtype="float32")
    add_one[4096, 256](array)
    cuda.synchronize()
    print(tensor.sum().item(), array.copy_to_host()[:3])


if __name__ == "__main__":
    main()
