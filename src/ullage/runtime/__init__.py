"""The parts that run beside a training: the guard, which survives an out-of-memory error."""
