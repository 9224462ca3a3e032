"""Memory budgets in CI: scenarios, the lock file of their measured memory, and the comparison."""
