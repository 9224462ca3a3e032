"""What the guard costs, and what it recovers."""
