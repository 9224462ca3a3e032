"""Memory over time: records and snapshots, read into columns."""
