"""One rank of a distributed job without its peers."""
