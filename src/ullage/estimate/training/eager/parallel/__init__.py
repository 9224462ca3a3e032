"""Operators of training that is spread over ranks: sharding, sequences, rings, stages."""
