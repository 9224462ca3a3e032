"""How a verb's records of options are read: from the command line, and from ullage.toml."""
