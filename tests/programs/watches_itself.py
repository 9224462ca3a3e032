"""Reads its own GPUs as `ullage watch` does, before and after it uses memory; the last line is
JSON. The arguments are directories with ullage and nvidia-ml-py.
"""

import json
import os
import sys

import torch

sys.path += sys.argv[1:]
from ullage.operate.watch.machine import MachineSource
from ullage.operate.watch.nvml.library import open_nvml
from ullage.operate.watch.sample_json import sample_from_line, sample_to_line

source = MachineSource(open_nvml())
before = source.read()
blocks = [
    torch.zeros(64 * (index + 1), 2**20, dtype=torch.uint8, device=f"cuda:{index}")
    for index in range(torch.cuda.device_count())
]
after = source.read()
line = sample_to_line(after)
print(
    json.dumps(
        {
            "pid": os.getpid(),
            "before": [device.used_bytes for device in before.devices],
            "used": [device.used_bytes for device in after.devices],
            "of_cuda": [
                (lambda free, all_: all_ - free)(*torch.cuda.mem_get_info(index))
                for index in range(len(blocks))
            ],
            "totals": [device.total_bytes for device in after.devices],
            "comes_back": sample_from_line(line) == after,
        }
    )
)
