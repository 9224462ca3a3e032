"""Pressure on the allocator beside times: `step_windows.py` has the steps, `request_log.py` the
requests, `gauge.py` reads the counters for both, `generation.py` makes requests of generate().
"""
