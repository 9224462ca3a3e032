"""Kernels in Triton, by hand: launched, in a custom operation, tuned.

Its last line is JSON: what came of it.
"""

import json

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x, y = tl.load(x_ptr + offsets, mask), tl.load(y_ptr + offsets, mask)
    tl.store(out_ptr + offsets, x + y, mask)


tuned_kernel = triton.autotune(
    [triton.Config({"BLOCK": size}) for size in (256, 1024, 4096)], key=["count"]
)(add_kernel)


@torch.library.triton_op("program::add", mutates_args=())
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 256),)
    torch.library.wrap_triton(add_kernel)[grid](x, y, out, x.numel(), BLOCK=256)
    return out


@torch.library.custom_op("program::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return add(x, x)


@double.register_fake
def _(x):
    return torch.empty_like(x)


def main() -> None:
    """Adds in each of the ways."""
    x = torch.ones(1 << 22, device="cuda")
    counts = torch.arange(8, device="cuda")
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x, out, x.numel())
    add_kernel[(1,)](counts, counts, counts, 8, BLOCK=256)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled = torch.compile(lambda x: double(add(x, x)) + 1)
    z = compiled(x)
    found = {
        "block": tuned_kernel.best_config.kwargs["BLOCK"],
        "counts": counts.tolist(),
        "bytes": torch.cuda.memory_allocated() - before,
        "numel": z.numel(),
        "capability": list(torch.cuda.get_device_capability()),
        "arch": triton.runtime.driver.active.get_current_target().arch,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
