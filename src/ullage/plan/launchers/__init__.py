"""Plans for programs that bring their own launcher: configurations of Accelerate and DeepSpeed."""
