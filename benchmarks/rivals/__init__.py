"""Other tools that predict GPU memory, asked about this project's recordings of real GPUs.

    python -m benchmarks.rivals --python .envs/torch-2.11.0/bin/python --packages DIR
    python -m benchmarks.rivals --python ... --packages DIR --fakegpu DIR

`--python` has torch, transformers, timm and accelerate; `--packages` is a folder in which pip has
installed torch-kitsune and ridgepoint (`pip install --no-deps --target DIR ...`), and `--fakegpu`
a built clone of FakeGPU, which is not on PyPI. What is not given is left out, and the page says so.
Each tool is called as its own documentation says; `asked.py` has the calls. Their packages' tables
of measurements are not read.
"""
