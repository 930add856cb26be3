"""GET /v1/models and /v1/models/{id}: which model names are served, and which are accepted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_shared.wire import errors
from llmirage_shared.wire.responses import model_card

logger = logging.getLogger("llmirage")

AcceptModels = Literal["served", "catalogue", "any"]


class ServedModels:
    """Names a request may use. The cluster answers for all of them, whichever model it imitates.

    served: the names that are listed. accept "catalogue": besides, any model of `catalogue` by its full name or its name
    without the organisation; "any": every name. A name that is accepted but not served is warned about once.
    """

    def __init__(
        self, served: Sequence[str], accept: AcceptModels, catalogue: Iterable[str], created: int, max_model_len: int
    ) -> None:
        self.served = list(served)
        self.max_model_len = max_model_len
        self._created = created
        self._any = accept == "any"
        self._accepted = set(served)
        self._catalogue = {form for name in catalogue for form in _forms(name)} if accept == "catalogue" else set()
        self._same = {form for name in served for form in _forms(name)} & self._catalogue  # other spellings of the served

    def check(self, name: str) -> None:
        """Raises ApiError (404, model_not_found) for a name that is not accepted; the empty name never is."""
        if name in self._accepted:
            return
        if not name or (not self._any and name.lower() not in self._catalogue):
            raise errors.model_not_found(name, self.served)
        if name.lower() in self._same:
            return
        logger.warning("Requests for model %r are answered by the cluster of %r", errors.shorten(name), self.served[0])
        if len(self._accepted) < 1000:
            self._accepted.add(name)

    def card(self, name: str) -> dict[str, Any]:
        return model_card(name, self._created, self.max_model_len)

    async def list(self, exchange: Exchange) -> Response:
        return exchange.json({"object": "list", "data": [self.card(name) for name in self.served]})

    async def retrieve(self, exchange: Exchange) -> Response:
        name = exchange.scope["path_params"]["model"]
        self.check(name)
        return exchange.json(self.card(name))


def _forms(name: str) -> tuple[str, str]:
    return name.lower(), name.rpartition("/")[2].lower()
