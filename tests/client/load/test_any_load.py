"""Whatever the load: each conversation that begins is sent whole and in order, in its slot, never before it is due."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.workload.rates import RateSeries
from llmirage_client.workload.session import Session

SECONDS = st.integers(0, 40).map(lambda eighths: eighths / 8)


@st.composite
def loads(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a load, of any kind, that cuts no conversation short."""
    options: dict[str, Any] = {"concurrency": draw(st.none() | st.integers(1, 5)), "seed": draw(st.integers(0, 5))}
    options["speed"] = draw(st.sampled_from([1.0, 4.0]))
    match draw(st.sampled_from(["slots", "rate", "series", "users", "schedule"])):
        case "slots":
            options["concurrency"] = options["concurrency"] or 1
            options["concurrency_ramp_s"] = draw(SECONDS)
        case "rate":
            options["request_rate_per_s"] = draw(st.sampled_from([0.3, 2.0, 50.0]))
            options["request_rate_ramp_s"] = draw(SECONDS)
            options["arrival_pattern"] = draw(st.sampled_from(["constant", "poisson", "gamma"]))
            options["arrival_smoothness"] = draw(st.sampled_from([0.3, 4.0]))
        case "series":
            points = ((0.0, draw(st.sampled_from([0.0, 1.0]))), (5.0, 6.0), (5.0, 0.5), (draw(st.integers(6, 9)), 2.0))
            options["request_rate_series"] = RateSeries(points)
        case "users":
            options["user_rate_per_s"] = draw(st.sampled_from([0.5, 3.0]))
            options["num_users"] = draw(st.integers(1, 6))
        case "schedule":
            options["fixed_schedule"] = True
            options["schedule_speedup"] = draw(st.sampled_from([0.5, 3.0]))
    if "fixed_schedule" not in options:
        options["sampling"] = draw(st.sampled_from(["sequential", "shuffle", "random"]))
        options["num_conversations"] = draw(st.integers(1, 12))
    if draw(st.booleans()):
        options["soft_duration_s"] = draw(st.integers(1, 20))
    return options


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[float, list[tuple[float, float]]]]:
    """For each session its arrival, and for each of its turns the reply's time and the delay before it."""
    turns = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4)
    return draw(st.lists(st.tuples(SECONDS, turns), min_size=1, max_size=6))


@given(given_sessions=sessions(), options=loads())
def test_conversations_are_whole_ordered_and_within_their_slots(
    given_sessions: list[tuple[float, list[tuple[float, float]]]], options: dict[str, Any], bench: Any
) -> None:
    flow = bench.workload(
        *(
            Session(
                f"s{number}",
                tuple(bench.turn(f"s{number}t{i}@{reply_s}", delay_s=delay_s) for i, (reply_s, delay_s) in enumerate(turns)),
                arrival_s=arrival_s,
            )
            for number, (arrival_s, turns) in enumerate(given_sessions)
        )
    )
    result, target = bench.run(flow, **options)
    conversations: dict[str, list[Any]] = {}
    for record in sorted(result.records, key=lambda record: (record.exchange.start_s, record.turn_index)):
        conversations.setdefault(record.correlation_id, []).append(record)
        assert record.ok
        assert record.issued_s <= record.exchange.start_s + 1e-9
    for records in conversations.values():
        turns = given_sessions[int(records[0].conversation_id[1:])][1]
        assert [record.turn_index for record in records] == list(range(len(records)))
        assert len(records) == len(turns) or "user_rate_per_s" in options  # whose first users are cut
        for before, after, (_, delay_s) in zip(records, records[1:], turns[1:], strict=False):
            assert after.exchange.start_s >= before.exchange.end_s + delay_s / options["speed"] - 1e-9
    if "soft_duration_s" not in options:
        assert len(conversations) == options.get("num_conversations", len(given_sessions))
    if options["concurrency"] is not None:
        # A slot is taken from the first request to the last reply (a delay before the first only takes longer).
        moments = [(records[0].exchange.start_s, 1) for records in conversations.values()]
        moments += [(records[-1].exchange.end_s, -1) for records in conversations.values()]
        running = most = 0
        for _, change in sorted(moments):
            running += change
            most = max(most, running)
        assert most <= options["concurrency"]
    assert bench.run(flow, **options)[1].times() == target.times()
