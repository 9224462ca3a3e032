"""What models there are: read from a Hugging Face config.json, or built in."""
