"""The port of an instance that is gone refuses connections, and takes them again when it is back."""

import time
from pathlib import Path

import httpx
from served import answer, comes_to, serving


def test_the_port_of_an_instance_follows_it(tmp_path: Path) -> None:
    listed = tmp_path / "urls"
    with serving("--fleet", "--instances", "2", "--ttft", "0", "--itl", "0", "--set", f"fleet_file={listed}") as url:
        own = url.removesuffix("/v1").replace("localhost", "127.0.0.1")
        first, second = listed.read_text().replace("localhost", "127.0.0.1").split()
        with httpx.Client() as kept:
            assert kept.get(f"{first}/health").status_code == 200
            for _ in range(2):
                for action, status in (("crash", 0), ("start", 200)):
                    httpx.post(f"{own}/llmirage/instances", json={"instance": 0, "action": action})
                    assert comes_to(first, status)
                    assert (answer(second), answer(own)) == (200, 200)
            body = {"model": "any", "prompt": "Hello", "max_tokens": 2}
            assert kept.post(f"{first}/v1/completions", json=body).status_code == 200
            kept.post(f"{first}/sleep")
            time.sleep(0.3)
            assert kept.get(f"{first}/is_sleeping").json() == {"is_sleeping": True}
