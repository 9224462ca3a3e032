"""PyTorch's eager mode without values: tensors that have a shape, a dtype and a storage, operators
that allocate what PyTorch's allocate, and an autograd that keeps what PyTorch's keeps.

A model is written as one writes it for PyTorch; Python's own reference counts free a storage when
PyTorch would. It takes milliseconds and needs no torch:

    arena = Arena()
    weight = parameter(arena, 768, 768, dtype=BFLOAT16)
    x = empty(arena, (8, 1024, 768), BFLOAT16, Category.INPUT)
    backward(linear(x, weight))
    count_totals(arena.log).peak

What it leaves out: what a kernel of a closed library allocates for itself, of which Log.assumed has
two ends.
"""
