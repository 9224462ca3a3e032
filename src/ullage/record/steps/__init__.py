"""The log of the work that the device is given, which the clock needs of a process."""
