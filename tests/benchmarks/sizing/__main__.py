"""Compares the answers of `llmirage size` with long simulations at neighbouring numbers of instances.

Run it from tests/benchmarks:  python -m sizing [--mix NAME ...] [--seeds N] [--truth FILE]

It is no test of CI, but for a few cheap mixes (test_sizing.py).

For each mix it asks `size`, with N seeds, and prints: the answer of the first seed with the neighbours that it states, how
many seeds give that answer, the truth, the verdict and the CPU seconds of an answer. The truth is the fewest instances of
which two long simulations say that all objectives are met; where these are too close to a limit, it is two numbers or more.
FILE keeps the verdicts of long simulations (truth.json beside this file), which take half an hour for all mixes and change
with the engine and its constants, not with `size`: an empty FILE makes them anew.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from llmirage_client.measure.slo import parse_slo
from llmirage_client.simulator.deployments import PoolShape
from llmirage_client.size.error_margin import margins_of_answer
from llmirage_client.size.pools import size_pools
from llmirage_client.size.sizing import Sizing, Terms, size
from llmirage_client.size.trial import Effort, Trials
from sizing.mixes import MIXES, POOL_MIXES, Mix, PoolMix
from sizing.truth import Truths

TERMS = Terms({}, "gpus", max_gpus=10_000, runners_up=0)
TRUTH = Path(__file__).with_name("truth.json")
_MOST_NEIGHBOURS = 2  # an answer that leaves more open is not one


def ask(mix: Mix, seed: int) -> tuple[Sizing, Effort]:
    trials = Trials(mix.traffic(seed), parse_slo(mix.slo))
    return size(mix.base, [mix.shape], trials, TERMS), trials.effort


def verdict(sizing: Sizing, least: int, most: int) -> str:
    if sizing.answer is None:
        return "WRONG: nothing"
    capacity = sizing.answer.capacity
    if least <= capacity.instances <= most:
        return "right"
    if capacity.instances < least and all(margin.confidence == "safe" for margin in margins_of_answer(capacity)):
        return "WRONG: safe"
    neighbour = capacity.fewest <= most and least <= capacity.most and capacity.most - capacity.fewest <= _MOST_NEIGHBOURS
    return "neighbour" if neighbour else "wrong"


def ask_pools(mix: PoolMix, seed: int) -> tuple[Sizing, Effort]:
    trials = Trials(mix.traffic(seed), parse_slo(mix.slo))
    return size_pools(mix.base, mix.shapes, trials, TERMS).sizing, trials.effort


def verdict_of_pools(mix: PoolMix, sizing: Sizing, truths: Truths) -> str:
    """Compare with long simulations of the answer, and of one instance more or less of a pool."""
    if sizing.answer is None:
        return "WRONG: nothing"
    capacity = sizing.answer.capacity
    assert isinstance(capacity.shape, PoolShape)
    prefill, decode = capacity.shape.counts(capacity.instances)

    def met(prefill: int, decode: int) -> bool | None:
        total = prefill + decode
        return truths.judge(replace(mix, pair=replace(capacity.shape, share=prefill / total)), total)

    if met(prefill, decode) is not False:
        fewer = [(prefill - 1, decode), (prefill, decode - 1)]
        return "neighbour" if any(min(pair) and met(*pair) for pair in fewer) else "right"
    if all(margin.confidence == "safe" for margin in margins_of_answer(capacity)):
        return "WRONG: safe"
    more = [(prefill + 1, decode), (prefill, decode + 1)]
    return "neighbour" if any(met(*pair) is not False for pair in more) else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", nargs="*", help="those whose names begin so; without, all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--truth", type=Path, default=TRUTH)
    asked = parser.parse_args()
    truths, verdicts = Truths(asked.truth), Counter[str]()
    print(f"{'mix':24} {'answer':>12} {'seeds':>6} {'truth':>8}  {'CPU s':>6}  verdict")
    for mix in MIXES:
        if asked.mix and not mix.name.startswith(tuple(asked.mix)):
            continue
        answers, efforts = zip(*(ask(mix, seed) for seed in range(asked.seeds)), strict=True)
        found = [0 if one.answer is None else one.answer.capacity.instances for one in answers]
        first = answers[0].answer
        least, most = truths.between(mix, max(found[0], 1))
        said = verdict(answers[0], least, most)
        verdicts[said] += 1
        span = "nothing" if first is None else f"{found[0]} ({first.capacity.fewest}-{first.capacity.most})"
        truth = f"{least}" if least == most else f"{least}-{most}"
        same = f"{Counter(found).most_common(1)[0][1]}/{len(found)}"
        cpu_s = sum(one.cpu_s for one in efforts) / len(efforts)
        print(f"{mix.name:24} {span:>12} {same:>6} {truth:>8}  {cpu_s:6.1f}  {said}", flush=True)
    for mix in POOL_MIXES:
        if asked.mix and not mix.name.startswith(tuple(asked.mix)):
            continue
        sizing, effort = ask_pools(mix, 0)
        said = verdict_of_pools(mix, sizing, truths)
        verdicts[said] += 1
        name = "nothing" if sizing.answer is None else sizing.answer.capacity.shape.named(sizing.answer.capacity.instances)
        print(f"{mix.name:24} {effort.cpu_s:6.1f}  {said}: {name}", flush=True)
    print(", ".join(f"{count} {said}" for said, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
