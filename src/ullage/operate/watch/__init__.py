"""The GPUs of a machine, their processes and the recorded jobs on them, moment by moment."""
