"""NVML, through NVIDIA's own Python package: a reader for each GPU, a reason for each refusal."""
