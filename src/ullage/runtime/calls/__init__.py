"""The guard of a script that is not changed: the calls of its model, their backward, its optimizers."""
