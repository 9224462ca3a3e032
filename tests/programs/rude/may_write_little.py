"""May write no file that is large enough for a record, and cannot change that."""

import resource

import torch

kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
