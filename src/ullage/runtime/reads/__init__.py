"""What is read of many tensors before each step."""
