"""A processor with the memory of a little GPU: what autograd saves for backward may take as many
bytes in all as the variable LITTLE_MEMORY says. Beyond it an operation raises the error of a GPU.

In front of PYTHONPATH it changes the program's torch, and not the program.
"""

import importlib.util
import os
import weakref


def limit(most_bytes):
    """Has what is saved for backward counted from here on, in this thread."""
    import torch

    taken = [0]

    def give_back(num_bytes):
        taken[0] -= num_bytes

    class Saved:
        """A tensor that autograd has saved."""

        def __init__(self, tensor):
            self.tensor = tensor

    def pack(tensor):
        num_bytes = tensor.nbytes
        if taken[0] + num_bytes > most_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {num_bytes / 2**20:.2f} MiB."
            )
        taken[0] += num_bytes
        saved = Saved(tensor)
        weakref.finalize(saved, give_back, num_bytes)
        return saved

    torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor).__enter__()


if "LITTLE_MEMORY" in os.environ and importlib.util.find_spec("torch"):
    limit(int(os.environ["LITTLE_MEMORY"]))
