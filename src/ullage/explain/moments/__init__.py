"""When: steps, phases and peaks of a trace, and how memory moves between them."""
