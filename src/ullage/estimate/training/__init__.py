"""Training, in closed form: a training loop played on tensors without values."""
