"""Recording on the GPU that is here: the phantom's recorder, without the phantom.

`recorder.py` attaches to a process that has torch, and detaches again; `event_hook.py` has the
allocator's events, `counters.py` its own counters, `step_peaks.py` what is kept of each step.
"""
