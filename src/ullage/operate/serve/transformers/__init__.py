"""transformers' continuous batching on the phantom, in virtual time.

These modules run in the engine's process.

entrance.py     the program that `ullage serve -- transformers serve MODEL` starts on the phantom
continuous.py   the model with random weights, its batching manager, and how requests get in
timed_steps.py  steps by time in place of steps on the device
read_times.py   how long the reads of the cache take
sender.py       the traffic, and what is noted of each request
"""
