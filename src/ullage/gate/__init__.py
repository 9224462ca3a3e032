"""A memory budget that CI can hold: scenarios, the lock of what they took, and the comparison."""
