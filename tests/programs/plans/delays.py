"""Offloads over a link whose copies come late, at random, and compares the gradients bit for bit.

delays.py 200            so many steps
delays.py 20 --without in out    as if nobody waited for the copies to the device, to the host
delays.py 20 --parameters    the parameters of blocks in the place of what they save for backward

Copies run in two threads, each in order, as on a GPU's copy engines. A thread holds no memory of
the "device": what is freed before its copy has ended is lost. The last line is a list: a document
for each lane that nobody waits for, or one where all is waited for.
"""

import argparse
import ctypes
import json
import queue
import random
import threading
import time

import torch
from small_models import BATCH, Text
from torch.multiprocessing.reductions import StorageWeakRef

from ullage.act.techniques import parameter_offload
from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.applying.target import Target
from ullage.act.techniques.means.offloading.offload_engine import Engine
from ullage.act.techniques.offload_activations import offload_modules
from ullage.act.techniques.technique import Action

MODULES = ("blocks.0", "blocks.1.mlp", "blocks.2", "blocks.3")
MOST_DELAY_S = 0.0005
# PyDLL holds the interpreter's lock, so that nothing is freed between the look and the copy.
move = ctypes.PyDLL(None).memmove
move.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Lane:
    """A thread that copies in order, each time after a while."""

    def __init__(self, seed):
        self.jobs = queue.Queue()
        self.random = random.Random(seed)
        self.num_lost = 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            to, of, held, mark = self.jobs.get()
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * MOST_DELAY_S)
            address, size, freed = held
            if freed.expired():
                self.num_lost += 1
            else:
                move(address if to is None else to, address if of is None else of, size)
            mark.set()


class DelayedLink:
    """A link of two lanes; it can leave out waiting for one of them."""

    def __init__(self, without):
        self.lanes = {"out": Lane(1), "in": Lane(2)}
        self.without = without
        self.num_host_bytes = 0

    def host_bytes(self, num_bytes):
        self.num_host_bytes += num_bytes
        return torch.empty(num_bytes, dtype=torch.uint8)

    def device_bytes(self, num_bytes, device):
        return torch.full((num_bytes,), 255, dtype=torch.uint8)

    def copy_out(self, host, device):
        return self.put("out", device, host.data_ptr(), None)

    def copy_in(self, device, host):
        return self.put("in", device, None, host.data_ptr())

    def put(self, lane, device, to, of):
        mark = threading.Event()
        storage = device.untyped_storage()
        held = storage.data_ptr(), device.numel(), StorageWeakRef(storage)
        self.lanes[lane].jobs.put((to, of, held, mark))
        return lane, mark

    def wait(self, mark):
        lane, done = mark
        if lane != self.without:
            assert done.wait(60), "a copy did not end"

    def settle(self):
        """Each copy to the host has been waited for."""


def gradients(model, batch, seed):
    model.zero_grad()
    torch.manual_seed(seed)
    model(batch).backward()
    return [parameter.grad for parameter in model.parameters()]


def offload(engine, link, model, optimizer, changes, *, of_parameters):
    """What is tried."""
    target = Target(model, [optimizer], changes)
    if of_parameters:
        parameter_offload.make_link = lambda _: link
        action = Action("parameter_offload", MODULES, {"part_mib": 1})
        parameter_offload.PARAMETER_OFFLOAD.apply(target, action)
    else:
        offload_modules(target, MODULES, lambda: engine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--without", nargs="+", choices=("in", "out"), default=[None])
    parser.add_argument("--parameters", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps([train(args, without) for without in args.without]))


def train(args, without):
    """What came of the steps where nobody waits for a lane, or for none."""
    torch.manual_seed(0)
    model, link = Text(), DelayedLink(without)
    engine = Engine(link, "cpu", least_bytes=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    num_different = 0
    lengths = random.Random(3)
    for step in range(args.steps):
        batch = torch.randint(512, (BATCH, lengths.choice((4, 8, 12))))
        before = [one.detach().clone() for one in model.parameters()]
        wanted = gradients(model, batch, step)
        optimizer.step()
        wanted += [one.detach().clone() for one in model.parameters()]
        with torch.no_grad():
            for one, value in zip(model.parameters(), before, strict=True):
                one.copy_(value)
        with Changes() as changes:
            offload(engine, link, model, optimizer, changes, of_parameters=args.parameters)
            found = gradients(model, batch, step)
            optimizer.step()
        found += [one.detach() for one in model.parameters()]
        num_different += not all(map(torch.equal, wanted, found))
    lost = sum(lane.num_lost for lane in link.lanes.values())
    return {
        "steps": args.steps,
        "different": num_different,
        "lost": lost,
        "host_bytes": link.num_host_bytes,
    }


if __name__ == "__main__":
    main()
