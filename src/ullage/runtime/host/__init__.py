"""The memory of the host, which rungs that offload take."""
