"""The official SDKs, each imported at the first use of a name: to build their thousands of classes takes seconds."""

from importlib import import_module
from types import ModuleType
from typing import Any


class _Sdk(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for its own in each object of a module
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


anthropic, openai = _Sdk("anthropic"), _Sdk("openai")
