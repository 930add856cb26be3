"""GET /v1/models and /v1/models/{id}: the served models, the accepted names, and which model answers for each name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from starlette.responses import Response

from llmirage_server.cluster.request import MOST_ADAPTERS, Adapter
from llmirage_server.config.lora import LoraModule, lora_module
from llmirage_server.config.planning import ServedPool
from llmirage_server.drivers.live import Driver
from llmirage_server.http.dialect import OPENAI, Dialect
from llmirage_server.http.exchange import HttpExchange
from llmirage_shared.wire import errors

logger = logging.getLogger("llmirage")

AcceptModels = Literal["any", "served"]
Catalogue = Callable[[], Iterable[Sequence[str]]]

_REMEMBERED_NAMES = 1000
_LONG_NAME = 200  # characters
LONGEST_NAME = 1000  # characters; names are kept, and answers repeat them
# vLLM's ModelPermission
_PERMITTED: Mapping[str, Any] = {
    "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
    "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the cluster, as requests may name it."""

    model: str  # as the cluster calls it
    max_model_len: int  # prompt and output tokens of the longest request
    joined: bool = False  # several tokens may go out together
    priorities: bool = False  # requests may have them
    seats: int = 256  # requests in the batches of its instances, all together
    hears: bool = False  # takes sounds
    page_tokens: int = 1  # of the radix tree
    ranks: int = 1  # of data parallelism, on each instance
    adapter: Adapter | None = None  # LoRA; the rest is of its model then, but for these:
    path: str = ""  # of the adapter's weights
    parent: str | None = None  # the model's name
    class_priorities: Mapping[str, int] = field(default_factory=dict)  # by service class, if requests may have priorities


class ServedModels:
    """Names a request may use, and the model that answers for each.

    served: the listed names. accept "served": no others; "any": every name. Then a name of the catalogue, with or without
    the organisation, means that model if it is served; for other names the first model answers, with one warning for each.
    catalogue: returns all names of each model; called when it is needed.
    """

    def __init__(
        self,
        served: Mapping[str, ServedModel],
        accept: AcceptModels,
        catalogue: Catalogue,
        created: int,
        dialect: Dialect = OPENAI,
    ) -> None:
        self.served = list(served)
        self.of_instance: Sequence[Sequence[str]] = ()  # the names at each instance's port
        self._own: tuple[list[str], Sequence[Sequence[str]]] = self.served, ()  # names without adapters
        self._adapters: Mapping[str, tuple[ServedModel, Collection[int]]] = {}
        self.dialect = dialect
        self._created = created
        self._accept = accept
        self._catalogue_names = catalogue
        self._found = dict(served)  # by every name that a request used
        self._spellings: dict[str, ServedModel] | None = None  # of the catalogue's names that are served

    def set_adapters(self, adapters: Mapping[str, tuple[ServedModel, Collection[int]]]) -> None:
        """Serve these LoRA adapters by name, and no others: each at the ports of some instances; -1: the router's."""
        if not self._adapters:
            self._own = self.served, self.of_instance
        own, of_instance = self._own

        def names(port: int) -> list[str]:
            return [name for name, (_, at) in adapters.items() if port in at]

        for name in self._adapters:
            self._found.pop(name, None)
        self._adapters = dict(adapters)
        self._found |= {name: served for name, (served, _) in adapters.items()}
        self.served = [*own, *names(-1)]
        self.of_instance = [[*its, *names(index)] for index, its in enumerate(of_instance)]

    def _adapter_at(self, name: str, exchange: HttpExchange) -> ServedModel | None:
        """Return the adapter that a request names as SGLang's do: by `lora_path`, or behind the model's name."""
        asked = exchange.body.get("lora_path")
        served, at = self._adapters.get(asked if isinstance(asked, str) else name.rpartition(":")[2], (None, ()))
        return served if exchange.instance in at else None

    def find(self, name: str) -> ServedModel:
        """Return the model for a name.

        Raises ApiError (404) for one that is not accepted; "" and very long ones never are.
        """
        if (found := self._found.get(name)) is not None:
            return found
        if not name or len(name) > LONGEST_NAME or self._accept == "served":
            raise errors.model_not_found(name, self.served, LONGEST_NAME)
        found = self.meant(name)
        if len(self._found) < _REMEMBERED_NAMES:
            self._found[name] = found
            if name.lower() not in self._catalogue():
                self._warn(name)
        return found

    def serves(self, name: str) -> bool:
        """Tell whether `find` takes the name."""
        try:
            self.find(name)
        except errors.ApiError:
            return False
        return True

    def meant(self, name: str, exchange: HttpExchange | None = None) -> ServedModel:
        """Return the served model of that name; for any other name, or at the port of one instance, the first one there."""
        if exchange is not None and exchange.instance >= 0:
            return self._found[self.names(exchange)[0]]
        return self._found.get(name) or self._catalogue().get(name.lower()) or self._found[self.served[0]]

    def names(self, exchange: HttpExchange) -> Sequence[str]:
        """Return the served names, at the port of one instance those of its model."""
        return self.served if exchange.instance < 0 else self.of_instance[exchange.instance]

    def _warn(self, name: str) -> None:
        last = " No further names will be reported." if len(self._found) == _REMEMBERED_NAMES else ""
        logger.warning(
            "Requests for model %r are answered by the cluster's model %r (--set accept_models=served refuses others).%s",
            errors.shorten(name), self.served[0], last,
        )  # fmt: skip

    def asked(self, name: str, exchange: HttpExchange) -> ServedModel:
        """Return the model that answers a request which names this one; the journal has the name. Raises as `find`."""
        exchange.entry.model = name if len(name) < _LONG_NAME else errors.shorten(name)
        if self._adapters and (found_adapter := self._adapter_at(name, exchange)) is not None:
            return found_adapter
        found, names = self.find(name), self.names(exchange)
        if exchange.instance < 0 or any(self._found[own] is found for own in names):
            return found
        if name in self.served or found.adapter is not None:
            raise errors.model_not_found(name, names, LONGEST_NAME)
        return self._found[names[0]]

    async def list(self, exchange: HttpExchange) -> Response:
        names = self.names(exchange)
        if _is_anthropic(exchange):
            cards = [self._anthropic_card(name) for name in names]
            ends = {"first_id": names[0], "last_id": names[-1]}
            return exchange.json({"data": cards, "has_more": False, **ends})
        if (card := exchange.dialect.vendor.model_card) is not None:
            cards = [card(name, self._created, self.find(name).max_model_len) for name in names]
            return exchange.json({"data": cards})
        return exchange.json({"object": "list", "data": [self._card(name) for name in names]})

    async def retrieve(self, exchange: HttpExchange) -> Response:
        """Any name that a request may use has a card; its `root` is the served model that answers for it."""
        name = exchange.path_id("model")
        return exchange.json(self._anthropic_card(name) if _is_anthropic(exchange) else self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        """Return an entry of the list, with the keys that the dialect adds."""
        found = self.find(name)
        added = {
            "root": found.path or (name if name in self.served else found.model),
            "parent": found.parent,
            "max_model_len": found.max_model_len,
            "permission": [
                {"id": f"modelperm-{name}", "object": "model_permission", "created": self._created, **_PERMITTED}
            ],
        }
        card = {"id": name, "object": "model", "created": self._created, "owned_by": self.dialect.owned_by}
        return card | {key: added[key] for key in self.dialect.card_fields}

    def _anthropic_card(self, name: str) -> dict[str, Any]:
        most = self.find(name).max_model_len
        return {
            "type": "model",
            "id": name,
            "display_name": name.rpartition("/")[2],
            "created_at": datetime.fromtimestamp(self._created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "max_input_tokens": most,
            "max_tokens": most,
        }

    def _catalogue(self) -> Mapping[str, ServedModel]:
        """Return the served model for each of its names in the catalogue, in lower case, with and without organisation."""
        if self._spellings is None:
            by_model = {served.model: served for served in reversed([self._found[name] for name in self.served])}
            self._spellings = {}
            for names in self._catalogue_names():
                if (here := next((by_model[name] for name in names if name in by_model), None)) is not None:
                    self._spellings |= {form: here for name in names for form in _forms(name)}
            for name in reversed(self.served):
                self._spellings |= dict.fromkeys(_forms(name), self._found[name])
        return self._spellings


def _is_anthropic(exchange: HttpExchange) -> bool:
    """Both APIs have this path; Anthropic's clients always send their API's version."""
    return exchange.header(b"anthropic-version") is not None


def _forms(name: str) -> tuple[str, str]:
    return name.lower(), name.rpartition("/")[2].lower()


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
