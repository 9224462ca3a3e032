"""In the place of JAX: a module of its name."""
