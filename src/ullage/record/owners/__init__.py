"""Who owns device memory: claims by modules, optimizers and names of the program."""
