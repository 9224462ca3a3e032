"""The protocol between ullage and the processes that it starts: the ULLAGE_* variables of the
environment, and the options of each verb.

variables.py declares every name once, run.py turns them into records and back. The package stands
on the ground, and not in players/phantom/, because both ends import it: `phantom` writes most
variables, and `record` and `techniques`, which are below it, read them in the watched process.
"""
