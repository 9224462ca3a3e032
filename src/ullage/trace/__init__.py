"""What memory does over time: records and snapshots, read into columns."""
