"""POST /llmirage/faults: how many faults there may be."""

from __future__ import annotations

from typing import Any


def test_the_number_of_faults_in_force_is_bounded(api: Any) -> None:
    fault = {"kind": "status", "status": 500}
    given = api.post("/llmirage/faults", {"faults": [fault] * 999})
    assert given.status_code == 200, given.text
    two = api.post("/llmirage/faults", {"faults": [fault] * 2})
    assert two.status_code == 400
    assert two.json()["error"]["message"] == "at most 1000 faults can be in force; with these there would be 1001"
    assert api.post("/llmirage/faults", fault).status_code == 200
    assert api.request("DELETE", "/llmirage/faults").status_code == 200  # the other tests share the server
