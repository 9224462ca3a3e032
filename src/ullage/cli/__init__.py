"""The command line: one file per verb, each loaded when its verb is called."""
