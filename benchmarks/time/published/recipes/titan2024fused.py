"""As titan2024, with torch's fused RMSNorm in place of the one that torchtitan had in Triton.

For the runs on A100 of the first half of 2024: Llama 2 13B without checkpointing does not fit with
the norm of separate operators.
"""

from llama_sizes import register

register("titan2024fused")
