"""Notes values as lost, and asks for them: while they are there, by a view, and once another tensor
has their memory.

The last line is a document: the answers.
"""

import json

import torch

from ullage.act.guard.progress import Progress

ELEMENTS = 1 << 12
TRIES = 50


def take_memory(address):
    """A tensor at an address that was freed."""
    others = []
    for _ in range(TRIES):
        tensor = torch.empty(ELEMENTS // 2)  # the host's allocator looks for more than it needs
        if tensor.data_ptr() == address:
            return tensor
        others.append(tensor)
    raise SystemExit("no tensor got the memory")


def main():
    """Asks, and prints."""
    progress = Progress()
    value = torch.empty(ELEMENTS)
    progress.mark(value, is_lost=True)
    view = value[1:]
    answers = {"value": progress.is_lost(value)}
    address = value.data_ptr()
    del value
    answers["view"] = progress.is_lost(view)
    del view
    answers["another"] = progress.is_lost(take_memory(address))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
