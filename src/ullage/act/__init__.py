"""Changes to a job: techniques and plans, the guard, callbacks of frameworks, caches."""
