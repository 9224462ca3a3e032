"""Everything of real GPUs that the repository has, beside what ullage says of the same."""
