"""Models from Hugging Face config.json files on disk."""

from llmirage_server.perf.catalogue.hf.model import model_from_config

__all__ = ["model_from_config"]
