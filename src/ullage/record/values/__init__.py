"""Values that steer programs: what is known of them, and what is assumed."""
