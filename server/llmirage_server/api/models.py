"""GET /v1/models and /v1/models/{id}: which model names are served, which are accepted, and what answers for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_shared.wire import errors
from llmirage_shared.wire.responses import anthropic_model_card, model_card

logger = logging.getLogger("llmirage")

AcceptModels = Literal["served", "catalogue", "any"]
Catalogue = Callable[[], Iterable[Sequence[str]]]

_REMEMBERED_NAMES = 1000


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What answers for a name."""

    model: str  # as the cluster calls it
    max_model_len: int  # prompt and output tokens of the longest request
    speculates: bool = False  # a step may bring several tokens
    priorities: bool = False  # requests may have them


class ServedModels:
    """Names a request may use, and the model that answers for each.

    served: the names that are listed. accept "catalogue": besides, any model of `catalogue` by its full name or its name
    without the organisation; "any": every name. A name of a served model leads to that model; for the others the first one
    answers, and a warning says so once. catalogue: gives all names of each model, and is asked when it is needed.
    """

    def __init__(self, served: Mapping[str, ServedModel], accept: AcceptModels, catalogue: Catalogue, created: int) -> None:
        self.served = list(served)
        self._created = created
        self._accept = accept
        self._catalogue_names = catalogue
        self._found = dict(served)  # names that were asked for
        self._spellings: dict[str, ServedModel | None] | None = None  # of the catalogue; None: of a model not served

    def find(self, name: str) -> ServedModel:
        """Raises ApiError (404, model_not_found) for a name that is not accepted; the empty name never is."""
        if (found := self._found.get(name)) is not None:
            return found
        known = name.lower() in self._catalogue() if self._accept != "served" else False
        if not name or not (known or self._accept == "any"):
            raise errors.model_not_found(name, self.served)
        found = self._catalogue().get(name.lower())
        if found is None:
            found = self._found[self.served[0]]
            logger.warning("Requests for model %r are answered by the cluster of %r", errors.shorten(name), self.served[0])
        if len(self._found) < _REMEMBERED_NAMES:
            self._found[name] = found
        return found

    def card(self, name: str) -> dict[str, Any]:
        return model_card(name, self._created, self.find(name).max_model_len)

    async def list(self, exchange: Exchange) -> Response:
        if _is_anthropic(exchange):
            cards = [self._anthropic_card(name) for name in self.served]
            ends = {"first_id": self.served[0], "last_id": self.served[-1]}
            return exchange.json({"data": cards, "has_more": False, **ends})
        return exchange.json({"object": "list", "data": [self.card(name) for name in self.served]})

    async def retrieve(self, exchange: Exchange) -> Response:
        name = exchange.scope["path_params"]["model"]
        return exchange.json(self._anthropic_card(name) if _is_anthropic(exchange) else self.card(name))

    def _anthropic_card(self, name: str) -> dict[str, Any]:
        most = self.find(name).max_model_len
        return anthropic_model_card(name, self._created, most)

    def _catalogue(self) -> Mapping[str, ServedModel | None]:
        """All spellings of the catalogue's names in lower case, and what is served under each."""
        if self._spellings is None:
            by_model = {served.model: served for served in reversed([self._found[name] for name in self.served])}
            self._spellings = {}
            for names in self._catalogue_names():
                here = next((by_model[name] for name in names if name in by_model), None)
                self._spellings |= {form: here for name in names for form in _forms(name)}
            for name in reversed(self.served):
                self._spellings |= dict.fromkeys(_forms(name), self._found[name])
        return self._spellings


def _is_anthropic(exchange: Exchange) -> bool:
    """Both APIs have this path; Anthropic's clients always send the version of theirs."""
    return exchange.header(b"anthropic-version") is not None


def _forms(name: str) -> tuple[str, str]:
    return name.lower(), name.rpartition("/")[2].lower()
