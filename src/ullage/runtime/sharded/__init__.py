"""Tensors of which each rank has a part (DTensor): their parts, version counters, collectives."""
