"""Draws workloads: conversations of a few turns, and trees of them with forks, spawns, joins and rounds."""

from collections.abc import Callable
from random import Random

from stored import Row


def eighths(rng: Random, most: int = 24) -> float:
    """Seconds on a coarse grid."""
    return rng.randint(0, most) / 8


# --- workloads ---------------------------------------------------------------------------------------------------------

Turns = Callable[[Random, str, int], Row]
"""The content of a turn: drawn for a session's name and the turn's number."""


def lengths(rng: Random, _: str, index: int) -> Row:
    return {
        "in": rng.choice([1, 40, 300, 600, 900 if rng.random() < 0.3 else 120]) + 60 * index,
        "out": rng.choice([1, 2, 8, 30]),
    }


def own_ids(rng: Random, name: str, index: int) -> Row:
    """Token ids: a beginning that many share, what the session's earlier turns had, and something new."""
    stretches = [[1, 64], [int(name[1:]) + 10, 40 * (index + 1)]]
    return {"in": 104 + 40 * index, "ids": stretches, "out": rng.choice([2, 8, 20])}


def lengths_and_ids(rng: Random, name: str, index: int) -> Row:
    return own_ids(rng, name, index) if int(name[1:]) % 2 else lengths(rng, name, index)


def texts(rng: Random, name: str, index: int) -> Row:
    words = " ".join(rng.choice(["tide", "lamp", "over", "green", "seven", "quay"]) for _ in range(rng.randint(1, 20)))
    return {"messages": [{"role": "user", "content": f"{name} {index}: {words}"}], "max_tokens": rng.choice([1, 4, 12])}


def labels(rng: Random, name: str, index: int, failures: float = 0.06) -> Row:
    """For scripts: how long the reply takes, and whether it fails."""
    fails = " FAIL" if rng.random() < failures else ""
    label = f"<{name} {index} @{rng.choice([0.125, 0.5, 1.0, 2.0, 3.25])}{fails}>"
    return {"messages": [{"role": "user", "content": label}], **({"max_tokens": 9} if rng.random() < 0.3 else {})}


def bad_labels(rng: Random, name: str, index: int) -> Row:
    """The same, with many failures."""
    return labels(rng, name, index, 0.3)


def blocks(rng: Random, name: str, _: int) -> Row:
    """Prompts known by the hashes of their blocks."""
    known = [100 + int(name[1:]) % 2, 200 + int(name[1:]) % 3, 300 + rng.randrange(4)][: rng.randint(0, 3)]
    tokens = max(len(known) * 16 - rng.randrange(10), 5) if rng.random() < 0.5 else len(known) * 16 + rng.randint(1, 30)
    return {
        "synthetic": {"tokens": tokens, "key": rng.randrange(10_000), "blocks": known, "block_tokens": 16},
        "max_tokens": rng.choice([2, 8]),
    }


def written(rng: Random, _: str, __: int) -> Row:
    """User messages known by their lengths, half of them with a beginning that all share."""
    return {
        "synthetic": {"tokens": rng.randint(5, 60), "key": rng.randrange(10_000), "prefix": rng.choice([0, 32])},
        "max_tokens": rng.choice([2, 8]),
    }


def flat(rng: Random, content: Turns, mode: str = "tokens", most: int = 7) -> Row:
    """Conversations of a few turns, some with times of their own."""
    timed = rng.random() < 0.5
    sessions: dict[str, Row] = {}
    for number in range(rng.randint(1, most)):
        name = f"s{number}"
        turns = []
        for index in range(rng.choice([1, 1, 2, 3, 4])):
            turn = content(rng, name, index)
            if delay_s := eighths(rng) if rng.random() < 0.5 else 0:
                turn["delay"] = delay_s
            if timed and index and rng.random() < 0.6:
                turn["arrival"] = eighths(rng)
            turns.append(turn)
        sessions[name] = {"turns": turns, "mode": mode}
        if timed:
            sessions[name]["arrival"] = eighths(rng)
        if rng.random() < 0.3:
            sessions[name]["ends_on_failure"] = True
    return {"sessions": sessions, "roots": list(sessions)}


def trees(rng: Random, content: Turns, modes: tuple[str, ...] = ("tokens",), most: int = 16) -> Row:
    """Roots with forks, spawns, joins, orchestrated rounds and children before their first turn, in three generations."""
    timed = rng.random() < 0.3
    sessions: dict[str, Row] = {}
    mode = rng.choice(modes)

    def some(depth: int) -> list[str]:
        if sessions and rng.random() < 0.1:  # a child of several
            shared = [name for name, made in sessions.items() if made.get("leaf")]
            if shared:
                return [rng.choice(shared)]
        return [session(depth) for _ in range(rng.randint(1, 2))]

    def session(depth: int) -> str:
        name = f"s{len(sessions)}"
        made: Row = {"mode": mode}
        sessions[name] = made  # takes the name
        deep = depth < 3 and len(sessions) < most
        if deep and rng.random() < 0.15:
            rounds = [{"children": some(depth + 1), "think": eighths(rng, 8)} for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.3:
                rounds[-1]["awaited"] = False
            made["rounds"] = rounds
            if rng.random() < 0.5:
                made["think_time"] = [0.5, 0.5, 0.125, 2.0]
            return name
        count = rng.choice([1, 2, 2, 3])
        turns = [content(rng, name, index) for index in range(count)]
        for index, turn in enumerate(turns):
            if rng.random() < 0.3:
                turn["delay"] = eighths(rng, 12)
            branches = []
            for kind in [rng.choice(["fork", "spawn", "join", "join"]) for _ in range(rng.choice([0, 0, 1, 2]))]:
                if not deep or len(sessions) >= most or (kind == "join" and index == count - 1):
                    continue
                children = some(depth + 1)
                join_at = rng.randint(index + 1, count - 1) if kind == "join" else None
                background = kind == "fork" and index < count - 1
                branches.append([{"join": rng.choice(["fork", "spawn"])}.get(kind, kind), children, join_at, background])
            if branches:
                turn["branches"] = branches
        made["turns"] = turns
        if depth == 0 and timed:
            made["arrival"] = eighths(rng, 16)
        if deep and depth < 2 and rng.random() < 0.15:
            made["before"] = some(depth + 1)
        if rng.random() < 0.15:
            made["ends_on_failure"] = True
        made["leaf"] = depth > 0 and "before" not in made and not any("branches" in turn for turn in turns)
        return name

    roots = [session(0) for _ in range(rng.randint(1, 4))]
    if timed:
        for root in roots:
            sessions[root].setdefault("arrival", 0.5)
    for made in sessions.values():
        made.pop("leaf", None)
    return {"sessions": sessions, "roots": roots}


def timed(workload: Row) -> bool:
    return all("arrival" in workload["sessions"][root] for root in workload["roots"])
