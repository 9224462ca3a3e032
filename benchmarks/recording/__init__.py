"""What `ullage record` costs."""
