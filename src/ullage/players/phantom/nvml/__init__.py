"""The phantom's GPUs for NVML programs outside of the program that runs on them.

A directory stands for a machine. machine.py makes it; the phantom in each process of a run keeps a
file there (csrc/machine/publish.c); the C files here answer NVML from those files.
"""
