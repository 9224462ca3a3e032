"""Ctrl-C within asyncio.run."""

import asyncio
import os
import signal

import torch


async def train():
    kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
    del kept


asyncio.run(train())
