"""What several techniques are made of."""
