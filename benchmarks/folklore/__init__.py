"""What people say about GPU memory, held against what the phantom shows: docs/folklore.md."""
