"""Names that the command line completes."""

from __future__ import annotations

from llmirage_client.workload.registry import BUNDLED_PREFIX, bundled
from llmirage_client.workload.synthesis.profile import presets


def preset_names() -> list[str]:
    return list(presets())


def bundled_names() -> list[str]:
    return [BUNDLED_PREFIX + name for name in bundled()]


def workload_names() -> list[str]:
    return [*bundled_names(), *preset_names()]
