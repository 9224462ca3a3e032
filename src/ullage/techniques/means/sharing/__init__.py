"""Training that ranks share: their groups, their batches, and parameters that are split."""
