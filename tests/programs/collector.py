"""Says when Python's collector first looks through all objects, and what it finds; leaves two files
that only cycles hold to the interpreter's end.
"""

import gc
import json
import sys
from pathlib import Path


class Holder:
    """Holds a file, and itself."""

    def __init__(self, path: Path) -> None:
        self.itself = self
        self.file = path.open("w", encoding="utf-8")
        self.file.write("whole")


early = Holder(Path(sys.argv[1]) / "early")

import torch

late = Holder(Path(sys.argv[1]) / "late")
torch.nn.Linear(8, 8, device="cuda")
searched: list[int] = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
num_before, young = len(gc.get_objects()), []
while 2 not in searched and len(young) < 1_000_000:
    young.append([])
print(json.dumps([num_before, len(young), len(gc.get_objects()), gc.get_threshold()]))
