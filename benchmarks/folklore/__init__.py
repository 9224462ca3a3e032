"""What people say about GPU memory, compared with the phantom: docs/results/explain.md."""
