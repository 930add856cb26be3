"""Names that the command line completes."""

from __future__ import annotations

from llmirage_server.perf.catalogue.lookup import list_gpus, list_models
from llmirage_server.perf.engines.lookup import list_engines


def gpu_names() -> list[str]:
    return [gpu.key for gpu in list_gpus()]


def model_names() -> list[str]:
    return [model.name for model in list_models()]


def engine_names() -> list[str]:
    return [engine.name for engine in list_engines()]
