"""Ends while autograd's thread still runs Python, and asks for its lock when Python is going."""

import threading
import time

import torch

in_backward = threading.Event()


class TakesItsTime:
    """Keeps the interpreter's end going until the other thread has asked."""

    def __del__(self, sleep=time.sleep):
        sleep(2)


def wait_beyond_the_end(gradient):
    in_backward.set()
    time.sleep(1)


def run_backward():
    weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
    weight.register_hook(wait_beyond_the_end)
    (weight * 2).sum().backward()


last = TakesItsTime()
threading.Thread(target=run_backward, daemon=True).start()
in_backward.wait()
