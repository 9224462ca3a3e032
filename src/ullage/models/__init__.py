"""The known models: read from a Hugging Face config.json, or built in."""
