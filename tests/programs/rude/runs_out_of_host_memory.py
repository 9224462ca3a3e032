"""Has less host memory than it asks for, by a limit that it cannot lift."""

import resource

import torch

kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
rows = []
while True:
    rows.append(bytearray(1 << 20))
