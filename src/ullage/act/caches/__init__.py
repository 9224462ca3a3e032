"""A cache of answers and embeddings around a model, with a budget in bytes.

value_cache.py   what stays is worth most: uses x seconds saved / byte
frequency.py     how often a key was asked for lately, in little memory
"""
