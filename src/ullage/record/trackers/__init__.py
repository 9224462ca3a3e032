"""Hands the figures of a recording's steps to the experiment tracker that the program uses itself.

`tracking.py` is told of each step; `choice.py` chooses the trackers, each of which has a file with
the names by its own conventions. No tracker is imported here: one that the program has not imported
has no run.
"""
