"""The configuration file of a project: where it is, and how a table of it is read."""
