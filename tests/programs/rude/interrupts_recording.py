"""Gets every signal that could end it while its record is written."""

import os
import pickle
import signal

import torch

dump = pickle.dump


def disturbed(*arguments, **named):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    return dump(*arguments, **named)


pickle.dump = disturbed
kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
