"""What `llmirage verdict` does: asks a server how its clients behaved."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any, NoReturn

import click
import httpx

from llmirage_client.report.screen import print_table
from llmirage_client.settings.endpoint import normalise_url
from llmirage_shared.plural import plural
from llmirage_shared.settings import InputRefused

BROKEN = 3  # exit status
_WITHIN_S = 30.0


def verdict(url: str, since: int | None, unused_s: float, api_key: str | None, json: bool) -> None:
    """Run `llmirage verdict`."""
    try:
        root = normalise_url(url)
    except ValueError as error:
        raise InputRefused([str(error)], "verdict") from None
    query = {"unused_s": unused_s} | ({} if since is None else {"since": since})
    try:
        answer = _asked(root.removesuffix("/v1"), query, api_key)
    except httpx.ConnectError:
        _fail(f"{url}: nothing listens there; `llmirage serve` starts a server")
    except httpx.HTTPError as error:
        _fail(f"{url}: {error or type(error).__name__}")
    except ValueError as error:
        _fail(f"{url}: {error}")
    if json:
        click.echo(dumps(answer, indent=2))
    else:
        _show(answer)
    sys.exit(0 if answer["passed"] else BROKEN)


def _asked(root: str, query: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return the server's verdict. Raises httpx.HTTPError, and ValueError for a server that has none."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = httpx.get(f"{root}/llmirage/verdict", params=query, headers=headers, timeout=_WITHIN_S)
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.status_code != 200:
        said = answer.get("error") if isinstance(answer, dict) else None
        message = said.get("message") if isinstance(said, dict) else None
        raise ValueError(f"status {response.status_code}{f': {message}' if message else '; is this `llmirage serve`?'}")
    if not isinstance(answer, dict) or not isinstance(answer.get("rules"), list):
        raise ValueError("the answer is no verdict; is this `llmirage serve`?")
    return answer


def _show(verdict: dict[str, Any]) -> None:
    print_table(
        [
            {"rule": rule["rule"], "verdict": rule["verdict"], "seen": rule["seen"], "broken": rule["broken"],
             "looks at": rule["looks_at"]}
            for rule in verdict["rules"]
        ]
    )  # fmt: skip
    for rule in verdict["rules"]:
        for finding in rule["findings"]:
            numbers = ", ".join(map(str, finding["requests"]))
            click.echo(
                f"{rule['rule']}: {'request' if len(finding['requests']) == 1 else 'requests'} {numbers}: {finding['why']}"
            )
        if (more := rule["broken"] - len(rule["findings"])) > 0:
            click.echo(f"{rule['rule']}: and {more} more")
    judged = plural(verdict["requests"], "request")
    forgotten = f"; the journal has forgotten {verdict['forgotten']:,} before them" if verdict["forgotten"] else ""
    click.echo(f"{judged} judged{forgotten}")


def _fail(message: str) -> NoReturn:
    click.echo(f"llmirage verdict: {message}", err=True)
    sys.exit(1)
