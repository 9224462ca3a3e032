"""vLLM's own engine on the phantom, in virtual time; these modules run in the engine's process.

program.py     the program that `ullage serve` starts on the phantom
engine.py      starts the engine as `vllm serve` does, and gives it requests
executor.py    vLLM's executor: steps of the worker, or by time
step_times.py  how long steps take, but for attention: measured on the phantom
replay.py      the traffic, and what is noted of each request
"""
