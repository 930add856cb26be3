"""Events of a stream, as a client reads them."""

import json
from typing import Any


def json_events(text: str) -> list[dict[str, Any]]:
    """Return the JSON object of each event; comments and [DONE] are left out."""
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
