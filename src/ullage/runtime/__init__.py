"""What ullage starts in the user's own torch on a real GPU; nothing here imports ullage."""
