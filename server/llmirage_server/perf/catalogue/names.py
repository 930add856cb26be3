"""Names that the command line completes."""

from __future__ import annotations

from llmirage_server.perf.catalogue.engines import list_engines
from llmirage_server.perf.catalogue.lookup import list_gpus, list_models


def gpu_names() -> list[str]:
    return [gpu.key for gpu in list_gpus()]


def model_names() -> list[str]:
    return [model.name for model in list_models()]


def engine_names() -> list[str]:
    return [engine.name for engine in list_engines()]
