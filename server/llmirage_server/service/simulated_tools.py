"""Results of simulated tools of a server: marked as simulated, the same for the same input, in the terms of no API."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence

SIMULATED_HOSTS = ("example.com", "example.org", "example.net")
MOST_RESULTS = 3
_WRITES_FILE = re.compile(r"savefig\(|to_csv\(|\.save\(|open\([^)]*,\s*[\"'][wa]|(?<![<>=0-9&])>{1,2}\s*[\w./-]+\.\w+")


def search_urls(query: str, hosts: Sequence[str] = SIMULATED_HOSTS[:1]) -> list[str]:
    """Return the addresses that a search finds, on each of the hosts in turn; none without hosts."""
    words = "-".join(query.lower().split()[:6])
    word = "".join(letter for letter in words if letter.isalnum() or letter == "-") or "result"
    numbers = range(1, MOST_RESULTS + 1) if hosts else ()
    return [f"https://{hosts[(number - 1) % len(hosts)]}/simulated/{number}/{word}" for number in numbers]


def code_output(code: str) -> str:
    """Return what running a program prints."""
    return f"(simulated) {len(code.splitlines())} lines ran without an error.\n"


def writes_file(code: str) -> bool:
    """Tell whether a program or a shell command looks as if it left a file."""
    return _WRITES_FILE.search(code) is not None


def mcp_output(tool: str, query: str) -> str:
    """Return what a tool of an MCP server answers."""
    return json.dumps({"simulated": True, "tool": tool, "query": query})


def sealed(text: str) -> str:
    """`encrypted_content` that this server can read again: not secret, but opaque to clients."""
    return "gAAAA" + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(content: str) -> str:
    """Return the text in `sealed` content, "" for any other."""
    try:
        return base64.urlsafe_b64decode(content.removeprefix("gAAAA")).decode()
    except ValueError:
        return ""
