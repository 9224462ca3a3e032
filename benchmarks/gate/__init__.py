"""What `ullage check` finds and lets pass: planted regressions, harmless changes, repetitions."""
