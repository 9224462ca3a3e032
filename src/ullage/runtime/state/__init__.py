"""What a step of a training can change: found, noted before it, and restored after an error."""
