"""Allocates what its arguments say, and tells how it was started."""

import argparse
import json
import os
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--mib", type=int, default=16)
parser.add_argument("--optimizer", default="none")
parser.add_argument("--fail-at", type=int)
parser.add_argument("--told", help="a file for how this was started")
args = parser.parse_args()

if args.told:
    told = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "file": __file__,
        "path": sys.path[0],
        "main": sys.modules["__main__"].__dict__ is globals(),
        "name": torch.cuda.get_device_name(),
        "stdin": sys.stdin.read(),
        "variables": sorted(name for name in os.environ if not name.startswith("ULLAGE_")),
        "threads": torch.get_num_threads(),
    }
    with open(args.told, "w") as file:
        json.dump(told, file)
if args.batch == args.fail_at:
    raise ValueError(f"a batch of {args.batch} is not wanted")
fixed = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
each = torch.empty(args.batch * (args.mib << 20), dtype=torch.uint8, device="cuda")
print("batch", args.batch)
