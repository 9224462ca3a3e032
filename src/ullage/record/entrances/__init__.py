"""Who has a process recorded: `ullage run` (`simulated_gpu.py`); on the GPU of this machine, which
`real_gpu.py` is for, the program itself (`recording.py`) or `ullage record` (`program.py`).
"""
