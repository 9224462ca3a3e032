"""A convolution of many images in 16 bits, with its algorithm from cuDNN's rules or, with
`benchmark`, from torch's search.
"""

import sys

import torch

torch.backends.cudnn.benchmark = "benchmark" in sys.argv
net = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=torch.float16)
images = torch.empty(int(sys.argv[1]), 64, 224, 224, device="cuda", dtype=torch.float16)
with torch.no_grad():
    net(images)
