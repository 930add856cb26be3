"""Draws the plans, records what comes of them, shows one. From the root of the repository:

python tests/golden/record.py plans      draw the plans anew (not needed but to have other ones)
python tests/golden/record.py outcomes   play all plans and keep the outcomes
python tests/golden/record.py show NAME  a plan, and what was recorded of it

Nothing that exists is overwritten without --force. Outcomes are those of the slow ways, and all others must agree with them.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import draw_engines
import draw_runs
import draw_shapes
import stored
from commands import COMMANDS, play_command
from play import ways_of
from play_engines import is_fast
from stored import OUTCOMES, PLANS, Row, differences, group_of, read, unpacked, write
from toy_deployment import toy_deployments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plans", "outcomes", "show"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    args = parser.parse_args()
    if args.what == "show":
        show(args.name)
        return
    paths = [*PLANS.values()] if args.what == "plans" else [*OUTCOMES.values(), stored.COMMANDS]
    if (there := [path.name for path in paths if path.exists()]) and not args.force:
        sys.exit(f"{', '.join(there)}: there already; --force overwrites")
    if args.what == "plans":
        draw()
    else:
        with toy_deployments():
            record()
    for path in paths:
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def draw() -> None:
    write(PLANS["engine"], drawn({**draw_engines.GROUPS, **draw_shapes.GROUPS}))
    write(PLANS["run"], drawn(draw_runs.RUN_GROUPS))
    write(PLANS["script"], drawn(draw_runs.SCRIPT_GROUPS))


def drawn(groups: Mapping[str, tuple[Callable[[Random], Row], int]]) -> Iterator[Row]:
    """Every plan of these groups, each drawn from its own name."""
    for group, (draw_one, count) in groups.items():
        for number in range(count):
            yield {"name": f"{group}-{number}", **draw_one(Random(f"{group} {number}"))}


def record() -> None:
    for family, path in PLANS.items():
        plans = read(path)
        fast = sum(map(is_fast, plans.values())) if family == "engine" else None
        outcomes = [agreed(family, row) for row in plans.values()]
        write(OUTCOMES[family], outcomes)
        print(f"{family}: {len(outcomes)} plans" + (f", {fast} of them in one go by default" if fast is not None else ""))
        for group, told in summary(outcomes).items():
            print(f"  {group}: " + ", ".join(f"{count} {what}" for what, count in told.items()))
    write(stored.COMMANDS, [play_command(name) for name in COMMANDS])


def agreed(family: str, row: Row) -> Row:
    """The outcome of a plan by its first way; the others must have the same."""
    first, *others = ways_of(family, row["name"]).values()
    outcome = first(row)
    assert json.loads(json.dumps(outcome)) == outcome
    for way in others:
        if told := differences(outcome, way(row)):
            sys.exit("\n".join(told))
    return outcome


def summary(outcomes: Iterable[Row]) -> dict[str, Counter[str]]:
    """What happens in the plans of each group, so that one sees whether they are worth their time."""
    told: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts = told.setdefault(group_of(outcome["name"]), Counter())
        counts["plans"] += 1
        counts["requests"] += len(outcome["requests"])
        for request in outcome["requests"]:
            counts[request["state"]] += 1
            counts["preempted"] += bool(request.get("preempted"))
            counts["with a cached prefix"] += bool(request.get("cached") or request.get("usage", [0, 0, 0])[2])
        counts.update(outcome.get("branches") or {})
    return told


def show(name: str) -> None:
    for family in PLANS:
        plans = read(PLANS[family])
        if name in plans:
            outcome: dict[str, Any] = read(OUTCOMES[family])[name]
            for request in outcome["requests"]:
                request["times_s"] = unpacked(request["times_s"])
            print(json.dumps(plans[name]))
            for request in outcome.pop("requests"):
                print(json.dumps(request))
            print(json.dumps(outcome))
            return
    sys.exit(f"there is no plan {name}")


if __name__ == "__main__":
    main()
