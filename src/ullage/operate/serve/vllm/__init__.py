"""vLLM's own engine on the phantom, in virtual time; these modules run in the engine's process.

entrance.py     the program that `ullage serve` starts on the phantom
engine_core.py  starts the engine as `vllm serve` does, gives it requests, measures its steps
executor.py     vLLM's executor: steps of the worker, or by time
offloading.py   copies between the GPU's cache and the host's, by time
replay.py       the traffic, and what is noted of each request
"""
