"""Allocates in code that it generates: in a file that stays, one that goes, and without a file."""

import importlib.util
import json
import tempfile
from pathlib import Path

import torch

TEXT = """import torch

def make(mib):
    return torch.zeros(mib, 1024, 256, device="cuda")
"""


def load(path):
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make


def compile_text():
    names = {}
    exec(compile(TEXT, "<made>", "exec"), names)
    return names["make"]


stays = Path(tempfile.mkdtemp()) / "made.py"
kept = [load(stays)(64)]
with tempfile.TemporaryDirectory() as directory:
    goes = load(Path(directory) / "made.py")
kept.append(goes(32))
kept.append(compile_text()(16))
print(json.dumps([str(stays)]))
torch.cuda.synchronize()
