"""Gets a signal while torch is imported."""

import os
import sys


class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "torch.serialization":
            os.kill(os.getpid(), int(sys.argv[1]))


sys.meta_path.insert(0, Interrupt())
import torch

torch.zeros(1, device="cuda")
