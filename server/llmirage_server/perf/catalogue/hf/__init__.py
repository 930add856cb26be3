"""Models from Hugging Face config.json files on disk."""

from llmirage_server.perf.catalogue.hf.model import is_config_path, model_from_config

__all__ = ["is_config_path", "model_from_config"]
