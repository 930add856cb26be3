"""Requests drawn by Hypothesis: whatever times, counts, failures and branches a run may have recorded."""

from dataclasses import replace

from column_records import record
from hypothesis import strategies as st

from llmirage_client.measure.record import Record, RequestError

times = st.floats(0.001, 5.0).map(lambda s: round(s, 6))
counts = st.none() | st.integers(0, 5000)
made = st.tuples(  # once for all: strategies made anew for every record would cost more than what is tested
    st.lists(times, max_size=6),
    st.none() | st.tuples(counts, counts, counts, st.none() | st.integers(0, 1000)),
    st.sampled_from([None, None, None, RequestError(None, "http_error", "no"), RequestError(500, "http_error", "no")]),
    st.sampled_from(["root", "fork", "spawn"]),
    st.fixed_dictionaries(
        {
            "session_num": st.integers(0, 5),
            "joined": st.lists(st.sampled_from(["c1", "c2"]), max_size=2).map(tuple),
            "phase": st.sampled_from(["profiling", "profiling", "warmup"]),
            "cancelled": st.booleans(),
            "input_tokens": counts,
            "output_tokens": counts,
            "output_tokens_asked": st.none() | st.integers(1, 100),
        }
    ),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    gaps, usage, error, mode, changes = draw(made)
    start_s, late_s, turn, streamed = draw(times), draw(times), draw(st.integers(0, 3)), draw(st.booleans())
    gaps = gaps if streamed else gaps[:1]
    stamps = tuple(100.0 + start_s + sum(gaps[: i + 1]) for i in range(len(gaps)))
    one = record(f"c{changes['session_num']}", turn, 100.0 + start_s, stamps, issued_s=100.0 + start_s - late_s, **changes)
    one.exchange.streamed, one.exchange.error = streamed, error
    one.exchange.ack_s = draw(st.sampled_from([None, one.exchange.start_s + 0.0005]))
    one.exchange.first_output_s = draw(st.sampled_from([None, *stamps]))
    if usage is not None:
        prompt, completion, cached, reasoning = usage
        one.exchange.usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    if mode == "root":
        return one
    depth, parent_turn = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    return replace(one, branch_mode=mode, parent_correlation_id="c0", agent_depth=depth, parent_turn_index=parent_turn)
