"""Requests that a scenario replays against a function of the program."""
