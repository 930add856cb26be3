"""LoRA adapters that are loaded: by the settings, and by vLLM's and SGLang's endpoints while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmirage_server.cluster.adapters import MOST_ADAPTERS, Adapter
from llmirage_server.config.lora import LoraModule, lora_module
from llmirage_server.config.planning import ServedPool
from llmirage_server.drivers.live import Driver
from llmirage_server.service.models import ServedModel, ServedModels

_ROUTER = -1  # the port that no instance has to itself


@dataclass(slots=True)
class _Loaded:
    served: ServedModel
    at: set[int]  # instances that have it, and _ROUTER


class LoraAdapters:
    """The adapters that each instance has; each is a model of its name. `instance` is that of a request's port, or -1."""

    def __init__(self, models: ServedModels, driver: Driver, pools: Sequence[ServedPool]) -> None:
        self.names: dict[int, str] = {}  # by number
        self._models = models
        self._driver = driver
        self._pools = [pool for pool in pools for _ in range(pool.config.instances)]  # by instance
        self._loaded: dict[str, _Loaded] = {}
        for pool in pools:
            for text, adapter in zip(pool.config.lora_modules, pool.adapters, strict=True):
                module = lora_module(text)
                at = {place for place, its in enumerate(self._pools) if its is pool}
                known = self._loaded.setdefault(module.name, _Loaded(self._served(module, adapter, pool), set()))
                known.at |= at | {_ROUTER}
                self.names[adapter.number] = module.name
        self._show()

    def enabled(self, instance: int) -> bool:
        """Tell whether an instance takes adapters, for -1 any."""
        return bool(self._takers(instance))

    def loaded(self, instance: int) -> dict[str, str]:
        """Return the paths of the adapters at a port, by name."""
        return {name: found.served.path for name, found in self._loaded.items() if instance in found.at}

    async def load(self, module: LoraModule, instance: int) -> None:
        """Load an adapter, or load it anew; wait until it is there.

        Raises ValueError for one that no slot has room for.
        """
        takers = self._takers(instance)
        pool = self._pools[takers[0]]
        number = next((number for number, name in self.names.items() if name == module.name), len(self.names) + 1)
        if number > MOST_ADAPTERS:
            raise ValueError(f"This server has had {MOST_ADAPTERS:,} adapters; it takes no more.")
        adapter = Adapter(module.name, number, module.rank(pool.config.max_lora_rank))
        self.names[number] = module.name
        seconds = self._driver.load_adapter(adapter, takers)
        await asyncio.sleep(seconds / self._driver.speed)
        at = self._loaded[module.name].at if module.name in self._loaded else set()
        self._loaded[module.name] = _Loaded(self._served(module, adapter, pool), at | {*takers, instance})
        self._show()

    def unload(self, name: str, instance: int) -> None:
        """Forget an adapter that is loaded there."""
        found = self._loaded[name]
        gone = found.at if instance == _ROUTER else {instance, _ROUTER}
        assert found.served.adapter is not None
        self._driver.unload_adapter(found.served.adapter, sorted(gone - {_ROUTER}))
        found.at = found.at - gone
        if not found.at:
            del self._loaded[name]
        self._show()

    def _takers(self, instance: int) -> list[int]:
        """Return the instances that take adapters from a port: with several models those of the first that takes any."""
        all_there = [place for place, pool in enumerate(self._pools) if pool.config.takes_lora]
        if instance != _ROUTER:
            return [instance] if instance in all_there else []
        return [place for place in all_there if self._pools[place].model == self._pools[all_there[0]].model]

    def _served(self, module: LoraModule, adapter: Adapter, pool: ServedPool) -> ServedModel:
        parent = module.base or pool.names[0]
        return replace(self._models.find(parent), adapter=adapter, path=module.path, parent=parent)

    def _show(self) -> None:
        self._models.set_adapters({name: (found.served, found.at) for name, found in self._loaded.items()})
