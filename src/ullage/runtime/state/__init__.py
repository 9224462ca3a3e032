"""The state that a training step can change: found, noted before it, restored after an error."""
