"""Models from Hugging Face config.json files on disk."""
