"""Records of requests in few words."""

from dataclasses import replace

from llmirage_client.measure.record import Exchange, Record

NAN = float("nan")


def record(
    conversation: str = "x",
    turn: int = 0,
    start_s: float = 0.0,
    token_s: tuple[float, ...] = (),
    usage: tuple[int, int, int | None] | None = None,
    **changes: object,
) -> Record:
    counts = None
    if usage is not None:
        counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
        if usage[2] is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage[2]}  # type: ignore[assignment]
    end_s = token_s[-1] + 0.5 if token_s else start_s + 1.0
    first = token_s[0] if token_s else None
    exchange = Exchange(start_s, start_s, end_s, list(token_s), first, 200, True, usage=counts)
    one = Record(0, "c", turn, "r", conversation, conversation, None, 0, start_s, exchange)
    return replace(one, **changes)  # type: ignore[arg-type]
