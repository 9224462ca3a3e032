"""Where events go: the terminal, a file, a web address, a command."""
