"""Models of images: vision transformers, convolutional networks, diffusion models."""
