"""Runs out of memory where nobody catches it and the program goes on: in a thread, an atexit
callback, or `__del__`, as the argument says.
"""

import atexit
import sys
import threading

import torch


def take():
    return torch.empty(2**50, dtype=torch.uint8, device="cuda")


class Holder:
    def __del__(self):
        take()


kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
where = sys.argv[1]
if where == "thread":
    thread = threading.Thread(target=take, name="saver")
    thread.start()
    thread.join()
elif where == "atexit":
    atexit.register(take)
else:
    holder = Holder()
    del holder
