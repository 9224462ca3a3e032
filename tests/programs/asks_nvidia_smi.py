"""Asks nvidia-smi as scripts do, with and without memory in use; the last line is JSON."""

import ctypes
import json
import os
import shutil
import subprocess

import torch

USED = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]


def used():
    """In MiB, of the first GPU."""
    return int(subprocess.check_output(USED, encoding="utf-8").splitlines()[0])


before = used()
block = torch.zeros(256, 2**20, dtype=torch.uint8, device="cuda")
during = used()
nvml = ctypes.CDLL("libnvidia-ml.so.1")
text = ctypes.create_string_buffer(96)
nvml.nvmlInit_v2()
nvml.nvmlSystemGetDriverVersion(text, 96)
fields = "nvidia-smi --query-gpu=driver_version,name,memory.total --format=csv,noheader,nounits"
driver, name, total = os.popen(fields).read().strip().split(", ")
print(
    json.dumps(
        {
            "which": bool(shutil.which("nvidia-smi")),
            "drivers": [driver, text.value.decode()],
            "names": [name, torch.cuda.get_device_name()],
            "totals": [int(total), torch.cuda.mem_get_info()[1] >> 20],
            "used": [
                before,
                during,
                (lambda free, all_: all_ - free >> 20)(*torch.cuda.mem_get_info()),
            ],
        }
    )
)
