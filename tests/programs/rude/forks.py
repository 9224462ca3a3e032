"""Forks before torch's devices are used and after; each child ends in another way."""

import multiprocessing
import os
import sys

import torch


def work(megabytes):
    kept = torch.zeros(megabytes << 20, dtype=torch.uint8, device="cuda")
    assert kept.is_cuda


def fork(end):
    child = os.fork()
    if child == 0:
        end()
        raise SystemExit  # unwinds the program in the child, as it is
    assert os.waitpid(child, 0)[1] in {0, 3 << 8}


context = multiprocessing.get_context("fork")
worker = context.Process(target=work, args=(32,))
worker.start()
worker.join()
assert worker.exitcode == 0
kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
fork(lambda: None)
fork(lambda: sys.exit(3))
fork(lambda: os._exit(3))
