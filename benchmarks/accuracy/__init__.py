"""The same workloads on real GPUs and on the phantom, held together event by event."""
