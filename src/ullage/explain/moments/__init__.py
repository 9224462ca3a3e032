"""Steps, phases and peaks of a trace, and how memory changes between them."""
