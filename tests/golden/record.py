"""Adds plans, records what comes of them, shows one. From the root of the repository:

python tests/golden/record.py add FAMILY <rows  further plans of `engine`, `run` or `script`, one JSON object a line
python tests/golden/record.py outcomes          play all plans and keep the outcomes; --force: instead of those there are
python tests/golden/record.py show NAME         a plan, and what was recorded of it

Outcomes are those of the slow ways, and all others must agree with them.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import stored
from commands import COMMANDS, play_command
from play import ways_of
from play_engines import is_fast
from stored import OUTCOMES, PLANS, Row, differences, group_of, read, unpacked, write
from toy_deployment import toy_deployments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["add", "outcomes", "show"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    args = parser.parse_args()
    if args.what == "show":
        show(args.name)
    elif args.what == "add":
        rows = [json.loads(line) for line in sys.stdin]
        write(PLANS[args.name], {**read(PLANS[args.name]), **{row["name"]: row for row in rows}}.values())
    else:
        paths = [*OUTCOMES.values(), stored.COMMANDS]
        if (there := [path.name for path in paths if path.exists()]) and not args.force:
            sys.exit(f"{', '.join(there)}: there already; --force overwrites")
        with toy_deployments():
            record()
        for path in paths:
            print(f"{path.name}: {path.stat().st_size:,} bytes")


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
