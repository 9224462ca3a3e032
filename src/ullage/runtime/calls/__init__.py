"""The guard of a script that is not changed: the calls of its model, and their backward."""
