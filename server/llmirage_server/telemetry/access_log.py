"""One line a request for the log of `llmirage serve --access-log`."""

from __future__ import annotations

from llmirage_server.telemetry.journal import JournalEntry


def access_line(entry: JournalEntry) -> str:
    """`client "method path" status`, then what is known of: model, tokens, TTFT, duration, how it ended, rule, fault."""
    client = f"{entry.client[0]}:{entry.client[1]}" if entry.client else "-"
    parts = [f'{client} "{entry.method} {_plain(entry.path)}" {entry.status or "-"}']
    if entry.model:
        parts.append(f"model={_plain(entry.model)}")
    if entry.prompt_tokens:
        parts.append(f"in={entry.prompt_tokens} cached={entry.cached_tokens} out={entry.output_tokens}")
    if entry.ttft_ms is not None:
        parts.append(f"ttft={entry.ttft_ms:.1f}ms")
    if entry.duration_s is not None:
        parts.append(f"duration={entry.duration_s:.3f}s")
    if entry.outcome != "complete":
        parts.append(f"ended={entry.outcome}")
    parts += [f"{name}={_plain(text)}" for name, text in (("rule", entry.rule), ("fault", entry.fault)) if text]
    return " ".join(parts)


def _plain(text: str) -> str:
    """What a client sent, on one line: control characters, quotes and spaces as escapes."""
    if text.isprintable() and text.isascii() and '"' not in text and " " not in text:
        return text
    return text.encode("unicode_escape").decode("ascii").replace('"', "%22").replace(" ", "%20")
