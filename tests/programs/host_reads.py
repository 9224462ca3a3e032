"""Reads weights on the CPU in many ways; prints a digest of what each read gave."""

import copy
import hashlib
import io
import json
import pickle
import threading

import torch
from torch import nn

found = {}


def digest(tensor):
    flat = tensor.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]


def of_module(module):
    return [digest(parameter) for parameter in module.state_dict().values()]


def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)[:200]
    return None


def normal():
    return torch.randn(1000, 1000)


torch.zeros(1, device="cuda")
torch.manual_seed(7)

# Modules, and what copies, converts, saves and loads them.
linear, embedding = nn.Linear(1024, 1000), nn.Embedding(3000, 512, padding_idx=3)
found["drawn after"] = torch.rand(4).tolist()
found["print"] = str(linear.weight)
found["mean"] = embedding.weight.mean().item()
found["padding"] = embedding.weight[3].abs().sum().item()
file = io.BytesIO()
torch.save(nn.Conv2d(256, 512, 3).state_dict(), file)
file.seek(0)
found["save and load"] = digest(torch.load(file)["weight"])
found["numpy"] = hashlib.sha256(nn.LSTM(512, 512).weight_ih_l0.detach().numpy()).hexdigest()
encoder = nn.TransformerEncoderLayer(512, 8, 1024)
found["deepcopy"] = of_module(copy.deepcopy(encoder))
found["its original"] = of_module(encoder)
found["half"] = of_module(nn.Linear(1024, 1000).half())
found["half of a copy"] = of_module(copy.deepcopy(nn.Linear(1024, 1000)).to(torch.bfloat16))
first, second = nn.Linear(1000, 1000), nn.Embedding(1000, 1000)
first.weight = second.weight
third = nn.Linear(1000, 1000)
third.load_state_dict(first.state_dict())
found["tied and loaded"] = [digest(first.weight), torch.equal(third.weight, second.weight)]
found["weight_norm"] = digest(nn.utils.parametrizations.weight_norm(nn.Linear(1000, 1000)).weight)

# Initialisers, types and generators.
for name in ("xavier_normal_", "kaiming_uniform_", "orthogonal_", "trunc_normal_"):
    made = torch.empty(700, 500)
    getattr(nn.init, name)(made)
    # A decomposition runs in parallel, and may differ in the last bits.
    found[name] = round(made.abs().sum().item(), 1) if name == "orthogonal_" else digest(made)
for dtype in (torch.float64, torch.float16, torch.bfloat16):
    for size in (1000, 1001):
        found[f"{dtype} {size}"] = digest(torch.empty(size, 1003, dtype=dtype).normal_(1, 2))
        found[f"uniform {dtype} {size}"] = digest(torch.empty(size, 1003, dtype=dtype).uniform_())
        found[f"after {dtype} {size}"] = torch.rand(2).tolist()
for bounds in ((-0.03, 0.03), (-2.0, 2.0)):
    found[f"truncated {bounds}"] = digest(
        nn.init.trunc_normal_(torch.empty(1000, 700), 0.0, 0.02, *bounds)
    )
    found[f"after truncated {bounds}"] = torch.rand(2).tolist()
generator = torch.Generator().manual_seed(5)
found["generator"] = digest(torch.empty(1000, 1000).normal_(generator=generator))
found["after generator"] = torch.rand(2, generator=generator).tolist()

# Numbers that the program computes with.
found["product"] = digest(nn.Parameter(torch.randn(700, 900) * 0.02))
square = torch.randn(600, 600)
found["cholesky"] = round(torch.linalg.cholesky(square @ square.T + torch.eye(600)).sum().item(), 1)
found["labels"] = int((normal().sum(1) > 0).sum())
found["list"] = normal()[3, :4].tolist()
part = normal()
part[5].zero_()
part[7] = 3.0
part[:500].mul_(2)
part[900:].copy_(torch.randn(100, 1000))
found["parts"] = digest(part)
found["vmap"] = digest(torch.func.vmap(lambda row: row * 2)(normal()))
found["grad"] = digest(torch.func.grad(lambda x: (x * x).sum())(normal()))
found["script"] = digest(torch.jit.script(nn.ReLU())(normal()))
with torch.inference_mode():
    found["inference"] = digest(torch.randn(1000, 1000) * 1)

# Bytes that are reached without an operation.
buffer = torch.empty(1000, 1000)
array = buffer.numpy()
buffer.normal_()
found["array made before"] = round(float(abs(array).sum()), 1)
found["dlpack"] = digest(torch.from_dlpack(normal()))
found["pickle"] = digest(pickle.loads(pickle.dumps(normal())))
found["shared"] = digest(normal().share_memory_())
found["pinned"] = digest(normal().pin_memory())
read, made = [], normal()
thread = threading.Thread(target=lambda: read.append(hashlib.sha256(made.numpy()).hexdigest()))
thread.start()
thread.join()
found["thread"] = read

# Small values are the device's too.
found["small on the device"] = torch.randn(300, 300).cuda().cpu().sum().item()
found["a part on the device"] = normal()[:4].cuda().cpu().sum().item()
found["small when converted"] = torch.randn(520, 520).to("cuda", torch.float16).cpu().sum().item()

# What autograd sees.
found["deviation"] = refused(lambda: torch.empty(1000, 1000).normal_(0, -1))
found["leaf"] = refused(lambda: nn.Linear(1000, 1000).weight.normal_())
leaf = normal().requires_grad_()
loss = (leaf * leaf).sum()
versions = [leaf._version]
with torch.no_grad():
    leaf.uniform_()
found["versions"] = [*versions, leaf._version]
found["changed"] = refused(loss.backward) is not None

print(json.dumps(found))
