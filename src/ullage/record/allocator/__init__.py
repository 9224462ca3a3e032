"""The allocator of the device: its events, counters, history and failures."""
