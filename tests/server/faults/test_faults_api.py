"""POST /llmirage/faults: how many faults there may be."""

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


def test_a_pattern_is_short_and_a_number_is_one_that_can_be_counted_to(api: Any) -> None:
    for wrong, name in (
        ({"model": "x" * 1_001}, "model"),
        ({"times": 10**400}, "times"),
        ({"probability": 10**400}, "probability"),
        ({"endpoint": "/" * 1_001}, "endpoint"),
    ):
        refused = api.post("/llmirage/faults", {"kind": "status", "status": 500, **wrong})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_fault")
        assert f"faults[0].{name}" in refused.json()["error"]["message"]
