"""What techniques of other rounding do to losses and logits, with real arithmetic on the CPU."""
