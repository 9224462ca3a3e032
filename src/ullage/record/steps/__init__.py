"""What the clock needs of a process: the log of the work that the device is given."""
