"""The smallest server that holds an objective for some traffic, proved by a run of its command."""
