"""Works in threads: torch is imported in one, one fails, one is still at work at the end."""

import threading
import time


def begin():
    import torch

    global kept
    kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")


def fail():
    raise RuntimeError("in a thread")


def go_on():
    time.sleep(0.5)
    kept.new_zeros(32 << 20)


for function in (begin, fail):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
threading.Thread(target=go_on).start()
