"""Image models: vision transformers, convolutional networks, diffusion models."""
