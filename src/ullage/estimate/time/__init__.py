"""How long a step takes, of a program that is played without torch: `ullage estimate --time`."""
