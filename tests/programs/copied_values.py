"""Values that are known are copied on the device; a launch has the copy's address by chance."""

import ctypes
import json

import torch

ON_DEVICE, WITHIN_AN_OPERATION, OUTSIDE = 3, 1, 0
cuda = ctypes.CDLL(None)

counts = torch.arange(8, device="cuda")
read = counts.tolist()
copy = torch.empty_like(counts)
address = ctypes.c_void_p(copy.data_ptr())
cuda.cudaMemcpy(address, ctypes.c_void_p(counts.data_ptr()), ctypes.c_size_t(64), ON_DEVICE)
cuda.ullage_follow_thread(WITHIN_AN_OPERATION)
cuda.cublasSscal_v2(None, 8, None, address, 1)
cuda.ullage_follow_thread(OUTSIDE)
print(json.dumps({"read": read, "copied": copy.tolist()}))
