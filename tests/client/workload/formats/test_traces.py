"""Published trace formats: samples load with the counts of their own replayers, bad files are refused, nothing crashes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import ANYTHING, loads_or_is_refused, mutate, problems_of, write, write_whole

from llmirage_client.workload.format import never
from llmirage_client.workload.registry import FORMATS, detect, load
from llmirage_client.workload.session import Turn, Workload, WorkloadError

DATA = Path(__file__).parents[3] / "data"
TRACES = DATA / "traces"


def lines_of(file: Path) -> list[Any]:
    return list(map(json.loads, file.read_text().splitlines()))


def turns_of(workload: Workload) -> list[Turn]:
    return [turn for session in workload.sessions.values() for turn in session.turns]


# file, format, roots, sessions, requests, prompt tokens, reply tokens, whether it is a schedule; by hand
SAMPLES = [
    ("weka_trace_0504.json", "weka_trace", 1, 1, 3, 33_739, 337, False),
    ("weka_trace_0613.json", "weka_trace", 1, 1, 4, 72_335, 502, False),
    ("weka_trace_0277_cut_subagent.json", "weka_trace", 1, 2, 6, 193_345, 5_797, False),
    ("agentic_mooncake_v2_handmade.jsonl", "agentic_mooncake", 1, 2, 4, 640, 112, True),
    ("agentic_mooncake_legacy_handmade.jsonl", "agentic_mooncake", 1, 2, 4, 640, 112, True),
    ("dynamo_request_trace_v1_agent.jsonl", "dynamo_request_trace", 1, 2, 4, 640, 112, True),
    ("dynamo_request_trace_v1_context_free.jsonl", "dynamo_request_trace", 1, 1, 1, 128, 16, True),
    ("mooncake_delta_inference_day_2026.jsonl", "mooncake_trace", 1, 1, 8, 67_679, 7_665, True),
    ("mooncake_fast25_synthetic_head12.jsonl", "mooncake_trace", 12, 12, 12, 252_948, 1_538, True),
    ("tracelab_multi_session_example.csv", "tracelab", 3, 3, 8, 5_308, 448, True),
    ("tracelab_session_workload_example.csv", "tracelab", 1, 1, 11, 535_277, 24_798, False),
    ("tracelab_sanitized_codex_first_rounds.jsonl", "tracelab", 1, 1, 5, 49_923, 1_124, True),
    ("tracelab_sanitized_claude_first_rounds.jsonl", "tracelab", 2, 2, 11, 427_517, 9_867, True),
    ("otel_simple_chain.json", "otel_spans", 1, 1, 3, 0, 1_500, True),
    ("otel_parallel_requests.json", "otel_spans", 1, 2, 5, 0, 5_500, True),
    ("otel_fan_in_dependencies.json", "otel_spans", 1, 2, 4, 0, 3_000, True),
    ("azure2023_conv.csv", "azure_trace", 20, 20, 20, 11_540, 1_674, True),
    ("burstgpt_v2_head4.csv", "burst_gpt_trace", 4, 4, 4, 3_656, 776, True),
    ("blis_tracev2_data.csv", "blis_trace", 1, 1, 3, 30, 15, True),
    ("blis_tracev2_header.yaml", "blis_trace", 1, 1, 3, 30, 15, True),
    ("sglang_agentic_trace_handmade.json", "swe_smith", 1, 1, 3, 0, 0, False),
    ("applied_compute_agentic_handmade.jsonl", "trie", 1, 1, 3, 1_792, 500, False),
]


@pytest.mark.parametrize(
    ("file", "name", "roots", "sessions", "requests", "tokens", "replies", "timed"),
    [pytest.param(*sample, id=sample[0]) for sample in SAMPLES],
)
def test_a_sample_loads_with_the_counts_of_its_replayer(
    file: str, name: str, roots: int, sessions: int, requests: int, tokens: int, replies: int, timed: bool
) -> None:
    path = str(TRACES / file)
    workload = load(path)
    turns = turns_of(workload)
    assert workload.format == detect(path) == name
    assert (len(workload.roots), len(workload.sessions), len(turns)) == (roots, sessions, requests)
    assert sum(turn.synthetic.tokens for turn in turns if turn.synthetic) == tokens
    assert sum(turn.max_tokens or 0 for turn in turns) == replies
    assert workload.timed == timed


def test_a_pool_of_servegen_is_drawn_at_its_rate() -> None:
    workload = load(str(TRACES / "servegen"), None, {"start": 21_600, "duration": 6_000, "rate": 2})
    assert workload.format == "servegen"
    assert len(workload.roots) == pytest.approx(12_000, rel=0.01)
    lengths = [(turn.synthetic.tokens, turn.max_tokens) for turn in turns_of(workload) if turn.synthetic]
    assert {tokens for tokens, _ in lengths} <= set(range(103, 124))
    assert lengths == sorted(lengths, key=lambda pair: pair[0]) or len({output for _, output in lengths}) > 5
    longest = max(lengths)
    assert longest[1] == max(output for _, output in lengths)  # one number decides on both lengths
    again = load(str(TRACES / "servegen"), None, {"start": 21_600, "duration": 6_000, "rate": 2})
    assert again.roots == workload.roots
    assert load(str(TRACES / "servegen" / "chunk-52-dataset.json"), None, {"start": 22_200}).roots


# --- what a format refuses -----------------------------------------------------------------------------------------------

WEKA = {"id": "t", "block_size": 64, "requests": [{"t": 0, "in": 130, "out": 3, "hash_ids": [1, 2], "api_time": 1.0}]}
DYNAMO = json.loads((TRACES / "dynamo_request_trace_v1_agent.jsonl").read_text().splitlines()[0])
MOONCAKE = {"request_id": "a", "session_id": "s", "input_length": 100, "output_length": 5, "hash_ids": [1], "timestamp": 0}
HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64}
PLAY = {
    "request_id": "a",
    "play_id": "p",
    "session_id": "s",
    "input_length": 64,
    "output_length": 1,
    "hash_ids": [1],
    "not_before_ms": 0,
    "dependencies": [],
}
ROUND = json.loads((TRACES / "tracelab_sanitized_codex_first_rounds.jsonl").read_text().splitlines()[0])
SPANS = json.loads((TRACES / "otel_fan_in_dependencies.json").read_text())
CALL = {
    "type": "llm_call",
    "start_time": "2026-01-01T00:00:01",
    "end_time": "2026-01-01T00:00:02",
    "attributes": {
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]),
    },
}
EXGENTIC = {"harness": "h", "session_id": "s", "models": ["m"], "spans": [CALL]}
ASKED = {"conversation_id": "c", "turn": 1, "role": "user", "content": "q", "system": "be brief"}
ANSWERED = {"conversation_id": "c", "turn": 2, "role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
TOOL = {"conversation_id": "c", "turn": 3, "role": "tool", "tool_results": [{"tool_call_id": "1", "content": "r"}]}
SPEED = {"question_id": "a" * 32, "category": "math", "messages": [{"role": "user", "content": "2+2"}]}
CAPTURE = {
    "captureData": {
        "endpointInput": {
            "data": json.dumps({"messages": [{"role": "user", "content": "x"}], "temperature": 0.5, "max_tokens": 7}),
            "encoding": "JSON",
        }
    },
    "eventMetadata": {"eventId": "e1", "inferenceTime": "2026-01-01T00:00:01.5Z"},
}
AUTOBENCH = {"prompt": "hello", "output_len": 5, "extra_request_body": {"temperature": 0}}
TOKENS = {"input_tokens": [1, 2, 3], "num_output_tokens": 4, "ts": 10}
CALL_IN_TOKENS = {"input_toks": 3, "output_toks": 2, "input_tok_ids": [1, 2, 3], "arrival_time_ns": 5_000_000}
AIPERF = ("bailian_trace", "mooncake_trace", "multi_turn", "random_pool", "raw_payload", "single_turn")


def weka(**changes: Any) -> dict[str, Any]:
    return {**WEKA, "requests": [{**WEKA["requests"][0], **changes}]}  # type: ignore[index]


def span(index: int, **changes: Any) -> dict[str, Any]:
    spans = [dict(one) for one in SPANS["spans"]]
    spans[index] |= changes
    return {**SPANS, "spans": spans}


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def dynamo(**changes: Any) -> dict[str, Any]:
    return {**DYNAMO, "request": {**DYNAMO["request"], **changes}}


def captured(**request: str) -> dict[str, Any]:
    return {**CAPTURE, "captureData": {"endpointInput": request}}


def said(messages: str) -> dict[str, Any]:
    return {**CALL, "attributes": {"gen_ai.usage.output_tokens": 1, "gen_ai.input.messages": messages}}


# A row or several, and how the problem begins, in line 1 if it names none.
BAD: dict[str, list[tuple[Any, str]]] = {
    "weka_trace": [
        ({**WEKA, "id": ""}, "id: String should have at least 1 character"),
        ({**WEKA, "block_size": 0}, "block_size: Input should be greater than or equal to 1"),
        ({**WEKA, "hash_id_scope": "file"}, "hash_id_scope: Input should be 'local'"),
        ({**WEKA, "hash_id_scope": "global"}, "hash_id_scope: Input should be 'local' (global_ids=true"),
        ({**WEKA, "requests": {}}, "requests: Input should be a valid list"),
        ({**WEKA, "requests": [3]}, "requests.0: Input should be a valid dictionary (a JSON object), got a number"),
        ([WEKA, {**weka(t="x"), "id": "u"}], "line 2: requests.0.t: Input should be a valid number, unable to parse"),
        (weka(**{"in": 0}), "requests.0.in: Input should be greater than or equal to 1"),
        (weka(hash_ids=[1, "b"]), "requests.0.hash_ids.1: Input should be a valid integer"),
        (weka(type="x"), "requests.0.type: Input should be 'n', 's' or 'subagent'"),
        ({**WEKA, "requests": [{"t": 0, "in": 130, "out": 3, "hash_idss": [1]}]}, "requests.0.hash_idss"),
        ([WEKA, WEKA], "line 2: id: 't' is also in line 1; ids must be unique"),
        ({**WEKA, "requests": []}, "has no trace with requests"),
    ],
    "dynamo_request_trace": [
        ({**DYNAMO, "schema": "v2"}, "schema: Input should be 'dynamo.request.trace.v1'"),
        ({**DYNAMO, "event_type": "x"}, "event_type: Input should be one of request_end"),
        ({**DYNAMO, "request": 3}, "request: Input should be a valid dictionary"),
        ({**DYNAMO, "request": {}}, "request.request_id: Field required"),
        ([DYNAMO, DYNAMO], "line 2: request.request_id: 'p0' is also on line 1"),
        ({**DYNAMO, "agent_context": []}, "agent_context: Input should be a valid dictionary"),
        (dynamo(output_tokens=-1), "request.output_tokens: Input should be"),
        (dynamo(request_received_ms="x"), "request.request_received_ms: "),
        (dynamo(replay={"input_length": 5}), "request.replay.trace_block_si"),
        (dynamo(replay={"input_length": 5, "trace_block_size": None}), "request.replay.trace_block_si"),
        (
            dynamo(replay={"input_length": 5, "trace_block_size": 64, "input_sequence_hashes": [1, 2]}),
            "request.replay.input_sequence_hashes: 2 blocks of 64 tokens are too ma",
        ),
        (
            [DYNAMO, {**without(DYNAMO, "agent_context"), "request": {**DYNAMO["request"], "request_id": "z"}}],
            "line 2: agent_context.session_id: Field required: either all requests have one or none",
        ),
    ],
    "agentic_mooncake": [
        ({**MOONCAKE, "input_length": 0}, "input_length: Input should be greater than or equal to 1"),
        ({**MOONCAKE, "hash_ids": []}, "hash_ids: 0 blocks of 512 tokens are too few for 100 tokens"),
        ({**MOONCAKE, "wait_for": ["b"]}, "timestamp: Value error, 'timestamp' is only for requests that wait for"),
        (without(MOONCAKE, "timestamp") | {"wait_for": ["b"]}, "wait_for: 'a' waits for 'b'"),
        (without(MOONCAKE, "timestamp"), "timestamp: Field required (or 'wait_for')"),
        ([MOONCAKE, MOONCAKE], "line 2: request_id: 'a' is also on line 1; ids must be unique"),
        ([{**HEADER, "version": 3}, PLAY], "version: Input should be 2"),
        ([{**HEADER, "block_size": -1}, PLAY], "block_size: Input should be greater than or equal to 1"),
        (
            [HEADER, {**PLAY, "dependencies": [{"request_id": "a", "trigger": "completion"}]}],
            "line 2: dependencies: 'a' waits ",
        ),
        (
            [HEADER, {**PLAY, "dependencies": [{"request_id": "a", "trigger": "now"}]}],
            "line 2: dependencies.0.trigger: Input sh",
        ),
        (
            [HEADER, {**PLAY, "dependencies": [{"request_id": "a", "trigger": "dispatch", "relation": "join"}]}],
            "line 2: dependencies.0.trigger: Value error, only a 'spawn' waits for a dispatch",
        ),
        (HEADER, "has no requests"),
    ],
    "tracelab": [
        ({**ROUND, "session_id": ""}, "session_id: String should have at least 1 character"),
        ({**ROUND, "round_index": -1}, "round_index: Input should be greater than or equal to 0"),
        ({**ROUND, "prefix_tokens": "x"}, "prefix_tokens: Input should be a valid integer"),
        ({**ROUND, "input_tokens_total": 1}, "input_tokens_total: Value error, is 1, but prefix_tokens + newly_append"),
        (without(ROUND, "output_tokens"), "output_tokens: Field required"),
        ({**ROUND, "timing_events": 1}, "timing_events: Input should be a valid list"),
        ({**ROUND, "timing_events": [{"event_type": "text", "timestamp": "noon"}]}, "timing_events.0.timestamp: Input"),
        ({**ROUND, "timing_events": [{"event_type": "text"}]}, "timing_events.0.timestamp: Field required"),
        ({**ROUND, "prefix_tokens": 0, "newly_append_tokens": 0, "input_tokens_total": 0}, "newly_append_tokens: a ro"),
        ([ROUND, 3], "line 2: Input should be a valid dictionary (a JSON object), got a number"),
    ],
    "otel_spans": [
        (span(0, span_id=None), "spans.0.span_id: Input should be a valid string"),
        (span(1, span_id="span_001"), "spans.1.span_id: 'span_001' is also in line 1 spans.0.; ids are unique"),
        (span(0, start_time="x"), "spans.0.start_time: Input should be a valid date and time (ISO 8601)"),
        (span(0, end_time=3), "spans.0.end_time: Input should be a valid string"),
        (span(0, attributes=[]), "spans.0.attributes: Input should be a valid dictionary"),
        (span(0, attributes={"gen_ai.input.messages": "{"}), "spans.0.attributes.gen_ai.input.messages: a text here is"),
        (span(0, attributes={"gen_ai.input.messages": "[]"}), "spans.0.attributes.gen_ai.input.messages: List should"),
        (span(0, attributes={"gen_ai.input.messages": '[{"content":"x"}]'}), "spans.0.attributes.gen_ai.input.messages"),
        (span(0, status=3), "spans.0.status: Input should be a valid dictionary"),
        ({"trace_id": "t", "spans": []}, "has no span of a model's call with its messages"),
        ({"trace_id": "t", "spans": 3}, "spans: Input should be a valid list"),
        ({"resourceSpans": [{"scopeSpans": 3}]}, "resourceSpans.0.scopeSpans: Input should be a valid list"),
    ],
    "exgentic": [
        ({**EXGENTIC, "session_id": 3}, "session_id: Input should be a valid string"),
        ({**EXGENTIC, "spans": None}, "spans: Input should be a valid list"),
        ({**EXGENTIC, "spans": [3]}, "spans.0: Input should be a valid dictionary"),
        ({**EXGENTIC, "models": "m"}, "models: Input should be a valid list"),
        ({**EXGENTIC, "spans": []}, "has no session that can run; left out 1: sessions without a call of a model"),
        ({**EXGENTIC, "spans": [{**CALL, "start_time": "x"}]}, "spans.0.start_time: Input should be a valid date"),
        ({**EXGENTIC, "spans": [without(CALL, "end_time")]}, "spans.0.end_time: Field required"),
        ({**EXGENTIC, "spans": [{**CALL, "attributes": {}}]}, "spans.0.attributes.gen_ai.usage.output_tokens: Field re"),
        (
            {**EXGENTIC, "spans": [said("[3]")]},
            "spans.0.attributes.gen_ai.input.messages.0: Input should be a valid dictionary",
        ),
        (
            {**EXGENTIC, "spans": [said(json.dumps([{"role": "user", "parts": [{"type": "smell"}]}]))]},
            "spans.0.attributes.gen_ai.input.messages.0.parts.0.type: Input should be text, thinking",
        ),
    ],
    "mlperf_agentic": [
        ({**ASKED, "conversation_id": ""}, "conversation_id: String should have at least 1 character"),
        ({**ASKED, "conversation_id": "é"}, "conversation_id: Input should be printable ASCII"),
        ({**ASKED, "turn": 2}, "turn: is 2, but this is row 1 of its conversation"),
        ({**ASKED, "role": "system"}, "role: Input should be user, assistant or tool, got 'system'"),
        ({**ANSWERED, "turn": 1}, "role: Value error, the beginning is followed by user, not by assistant"),
        ([ASKED, {**ASKED, "turn": 2}], "line 2: role: Value error, user is followed by assistant, not by user"),
        (
            [ASKED, {**ANSWERED, "tool_calls": None, "content": "x"}, TOOL],
            "line 3: role: Value error, a tool row needs a row of",
        ),
        (
            [ASKED, {**ASKED, "conversation_id": "d"}, ANSWERED],
            "line 3: conversation_id: the rows of 'c', which began on line 1",
        ),
        ([ASKED, without(ANSWERED, "tool_calls", "content")], "line 2: content: Field required"),
        ([ASKED, ANSWERED, {**TOOL, "tool_results": []}], "line 3: tool_results: List should have at least 1 item"),
        ({**ASKED, "delay_seconds": -1}, "delay_seconds: Input should be greater than or equal to 0"),
    ],
    "speed_bench": [
        ({**SPEED, "question_id": "short"}, "question_id: String should have 32 characters, not 5"),
        ({**SPEED, "question_id": 3}, "question_id: Input should be a valid string"),
        ({**SPEED, "category": ""}, "category: String should have at least 1 character"),
        ({**SPEED, "messages": []}, "messages: List should have at least 1 item"),
        ({**SPEED, "messages": "x"}, "messages: Input should be a valid list"),
        ({**SPEED, "messages": [3]}, "messages.0: Input should be a valid dictionary"),
        ({**SPEED, "messages": [{"content": "x"}]}, "messages.0.role: Field required"),
        ({**SPEED, "messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({**SPEED, "messages": [{"role": "user", "content": ""}]}, "messages.0.content: String should have at least"),
        (
            {
                **SPEED,
                "messages": [
                    {"role": "user", "content": "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"}
                ],
            },
            "messages.0.content: is a placeholder",
        ),
    ],
    "sagemaker_capture": [
        ({**CAPTURE, "eventMetadata": {}}, "eventMetadata.eventId: Field required"),
        ({**CAPTURE, "eventMetadata": {"eventId": "e", "inferenceTime": "x"}}, "eventMetadata.inferenceTime: Input sh"),
        ({**CAPTURE, "captureData": 3}, "captureData: Input should be a valid dictionary"),
        ({**CAPTURE, "captureData": {}}, "captureData.endpointInput: Field required"),
        (captured(data="{"), "captureData.endpointInput.data: event e1: no "),
        (captured(data="{}"), "captureData.endpointInput.data: event e1: has"),
        (captured(data="%", encoding="BASE64"), "captureData.endpointInp"),
        (captured(data="{}", encoding="CSV"), "captureData.endpointInput"),
        (captured(data='{"messages":[]}'), "captureData.endpointInput.data.m"),
        (captured(data='{"messages":3}'), "captureData.endpointInput.data.me"),
        (without(CAPTURE, "eventMetadata") | {"eventVersion": "0"}, "eventMetadata: Field req"),
    ],
    "sglang_autobench": [
        ({**AUTOBENCH, "prompt": ""}, "prompt: Field required"),
        ({**AUTOBENCH, "prompt": 3}, "prompt: Input should be a text, messages, token ids, or a list of turns"),
        ({**AUTOBENCH, "output_len": "x"}, "output_len: Input should be a valid integer"),
        ({**AUTOBENCH, "output_len": -1}, "output_len: Input should be greater than or equal to 1"),
        ({**AUTOBENCH, "prompt": [1, "a"]}, "prompt.1: Input should be a token id"),
        ({**AUTOBENCH, "prompt": [{"content": "x"}]}, "prompt.0.role: Field required"),
        ({**AUTOBENCH, "prompt": [[]]}, "prompt.0: List should have at least 1 item"),
        ({**AUTOBENCH, "messages": []}, "messages: List should have at least 1 item"),
        ({**AUTOBENCH, "extra_request_body": "{"}, "extra_request_body: a text here is JSON, but"),
        ({**AUTOBENCH, "timestamp": -5}, "timestamp: Input should be greater than or equal to 0"),
    ],
    "sglang_token_trace": [
        ({**TOKENS, "input_tokens": 3}, "input_tokens: Input should be a valid list"),
        ({**TOKENS, "input_tokens": [1, -2]}, "input_tokens.1: Input should be a token id"),
        ({**TOKENS, "input_tokens": [True]}, "input_tokens.0: Input should be a token id"),
        ({**TOKENS, "input_tokens": [2**31]}, "input_tokens.0: Input should be a token id"),
        ({"input_tokens": [1], "output_tokens": None}, "num_output_tokens: Field required"),
        ({**TOKENS, "num_output_tokens": "x"}, "num_output_tokens: Input should be a valid integer"),
        ({**TOKENS, "num_output_tokens": -1}, "num_output_tokens: Input should be 0 to"),
        ({**TOKENS, "output_tokens": ["a"]}, "output_tokens.0: Input should be a token id"),
        ({**TOKENS, "ts": "noon"}, "ts: Input should be a valid number"),
        ({**TOKENS, "input_tokens": []}, "has no request that can run; left out 1: rows without tokens"),
    ],
}


@pytest.mark.parametrize(("name", "rows", "problem"), [(name, *case) for name, cases in BAD.items() for case in cases])
def test_a_bad_file_is_refused_with_line_and_field(name: str, rows: Any, problem: str, tmp_path: Path) -> None:
    (found, *_) = problems_of(write(tmp_path, *(rows if isinstance(rows, list) else [rows])), name)
    assert found.startswith(problem if problem.startswith(("line ", "has no ")) else f"line 1: {problem}")


@pytest.mark.parametrize(("name", "field"), [("weka_trace", "requests.0.t"), ("agentic_mooncake", "not_before_ms")])
def test_a_missing_number_is_one_problem(name: str, field: str, tmp_path: Path) -> None:
    if name == "weka_trace":
        rows = [WEKA | {"requests": [{"type": "n", "in": 1, "out": 1}]}]
    else:
        rows = [HEADER, {key: value for key, value in PLAY.items() if key != field}]
    problems = problems_of(write(tmp_path, *rows), name)
    assert problems == [f"line {len(rows)}: {field}: Field required"]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BLIS = "request_id,round_index,input_tokens,output_tokens,arrival_time_us\n"
ROUNDS = "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
BAD_TABLES = [
    ("azure_trace", "TIMESTAMP,ContextTokens\n", "line 1: the header has no column 'GeneratedTokens'"),
    ("azure_trace", AZURE, "has no requests below its header"),
    ("azure_trace", AZURE + "2023-11-16 18:15:46,,4\n", "line 2: ContextTokens: Field required"),
    ("azure_trace", AZURE + "2023-11-16 18:15:46,x,4\n", "line 2: ContextTokens: Input should be a valid integer"),
    (
        "azure_trace",
        AZURE + "2023-11-16 18:15:46,0,4\n",
        "line 2: ContextTokens: Input should be greater than or equal to 1",
    ),
    (
        "azure_trace",
        AZURE + "2023-11-16 18:15:46,4,-4\n",
        "line 2: GeneratedTokens: Input should be greater than or equal to 0",
    ),
    ("azure_trace", AZURE + "2023-13-16 18:15:46,4,4\n", "line 2: TIMESTAMP: Input should be a valid date and time"),
    ("azure_trace", AZURE + "2023-11-16 18:15:46,1,234,44\n", "line 2: has 4 cells, and the header 3 columns"),
    ("azure_trace", AZURE + "noon,4,4\n", "line 2: TIMESTAMP: Input should be a valid date and time"),
    ("azure_trace", AZURE + "\n2023-11-16 18:15:46,4\n", "line 3: GeneratedTokens: Field required"),
    ("azure_trace", AZURE + "2023-11-16 18:15:46,4,99999999999\n", "line 2: GeneratedTokens: Input should be less than"),
    ("blis_trace", "request_id\n", "line 1: the header has no column 'round_index'"),
    ("blis_trace", BLIS, "has no request that can run"),
    ("blis_trace", BLIS + "1,0,0,5,0\n", "line 2: input_tokens: Input should be greater than or equal to 1"),
    ("blis_trace", BLIS + "1,0,x,5,0\n", "line 2: input_tokens: Input should be a valid integer"),
    ("blis_trace", BLIS + "1,-1,5,5,0\n", "line 2: round_index: Input should be greater than or equal to 0"),
    ("blis_trace", BLIS + "1,0,5,5,-1\n", "line 2: arrival_time_us: Input should be greater than or equal to 0"),
    ("blis_trace", BLIS + "1,0,5,5,x\n", "line 2: arrival_time_us: Input should be a valid number"),
    ("blis_trace", BLIS + "1,0,5,,0\n", "line 2: output_tokens: Field required"),
    ("blis_trace", BLIS + "1,0,5,-5,0\n", "line 2: output_tokens: Input should be greater than or equal to 0"),
    ("blis_trace", BLIS[:-1] + ",prefix_length\n1,0,5,5,0,x\n", "line 2: prefix_length: Input should be a valid integer"),
    ("tracelab", ROUNDS, "has no rounds"),
    ("tracelab", ROUNDS + "a,0,0,0,5,0\n", "line 2: input_len: a round has at least one token"),
    ("tracelab", ROUNDS + "a,0,x,1,5,0\n", "line 2: prefix_len: Input should be a valid integer"),
    ("tracelab", ROUNDS + ",0,0,1,5,0\n", "line 2: session_id: String should have at least 1 character"),
    ("tracelab", ROUNDS + "a,0,0,1,5,-3\n", "line 2: tool_wait_after_ms: Input should be greater than or equal to 0"),
]


@pytest.mark.parametrize(("name", "text", "problem"), BAD_TABLES)
def test_a_bad_table_is_refused_with_line_and_column(name: str, text: str, problem: str, tmp_path: Path) -> None:
    assert problems_of(write_whole(tmp_path, text), name)[0].startswith(problem)


def test_rounds_of_a_table_are_sent_by_their_number_with_a_note_on_rows_out_of_order(tmp_path: Path) -> None:
    """As the session runner sorts them: by round, rows of one round in the order of the file."""
    rows = "a,2,30,5,3,0\nb,0,0,50,5,0\na,0,0,10,1,7\na,1,11,9,2,0\nb,1,55,1,5,0\na,1,11,8,4,0\n"
    workload = load(write_whole(tmp_path, ROUNDS + rows))
    assert [turn.max_tokens for turn in workload.sessions["a"].turns] == [1, 2, 4, 3]
    assert [turn.delay_s for turn in workload.sessions["a"].turns] == [0, 0.007, 0, 0]
    assert workload.notes == (
        "1 round after a later one of the session, the first on line 4: sent in the order of round_idx",
        "1 round with the number of one before, the first on line 7: all are sent, in file order",
    )
    assert load(write_whole(tmp_path, ROUNDS + "a,0,0,10,1,7\nb,0,0,10,1,7\na,1,11,9,2,0\n")).notes == ()


@pytest.mark.parametrize("between", [";", "\t", "|"])
@pytest.mark.parametrize("file", ["azure2023_conv.csv", "tracelab_multi_session_example.csv", "burstgpt_v2_head4.csv"])
def test_a_table_of_another_program_is_the_same_trace(file: str, between: str, tmp_path: Path) -> None:
    """Other characters between the cells, a decimal point in whole numbers, empty lines first, an empty last column."""
    rows = [line.split(",") for line in (TRACES / file).read_text().splitlines()]
    cells = [[f"{cell}.0" if cell.isdecimal() and number else cell for cell in row] for number, row in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n\n" + "\n".join(between.join([*row, ""]) for row in cells))
    workload, same = load(str(tmp_path / "t.csv")), load(str(TRACES / file))
    assert workload.format == same.format
    lengths = [(turn.synthetic.tokens, turn.max_tokens) for turn in turns_of(workload) if turn.synthetic]
    assert lengths == [(turn.synthetic.tokens, turn.max_tokens) for turn in turns_of(same) if turn.synthetic]
    assert [workload.sessions[root].arrival_s for root in workload.roots] == [
        same.sessions[root].arrival_s for root in same.roots
    ]


@pytest.mark.parametrize("file", ["weka_trace_0504.json", "otel_simple_chain.json", "sglang_agentic_trace_handmade.json"])
def test_a_document_may_begin_on_its_first_line(file: str, tmp_path: Path) -> None:
    text = (TRACES / file).read_text()
    same = load(write_whole(tmp_path, "{" + text.lstrip()[1:].lstrip()))
    assert turns_of(same)[0].max_tokens == turns_of(load(str(TRACES / file)))[0].max_tokens
    (problem, *_) = problems_of(write_whole(tmp_path, text + text), same.format)  # as `jq .` writes several
    assert "Extra data" in problem


def test_values_over_several_lines_are_told_how_to_get_on_one_each(tmp_path: Path) -> None:
    rows = "\n".join(json.dumps(row, indent=2) for row in (AUTOBENCH, AUTOBENCH))
    (problem,) = problems_of(write_whole(tmp_path, rows), "sglang_autobench")
    assert problem.startswith("line 8: invalid JSON: Extra data at column 1")
    assert "`jq -c .`" in problem


def test_messages_may_be_values_of_otlp_and_other_operations_are_told(tmp_path: Path) -> None:
    def value(held: Any) -> dict[str, Any]:
        if isinstance(held, dict):
            return {"kvlistValue": {"values": [{"key": key, "value": value(one)} for key, one in held.items()]}}
        return {"arrayValue": {"values": [value(one) for one in held]}} if isinstance(held, list) else {"stringValue": held}

    said = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    spans = []
    for number, operation in enumerate(("chat", "invoke_agent", "execute_tool")):
        attributes = {"gen_ai.operation.name": operation} | ({"gen_ai.input.messages": said} if number < 2 else {})
        times = {"startTimeUnixNano": str(number), "endTimeUnixNano": str(number + 1)}
        held = [{"key": key, "value": value(one)} for key, one in attributes.items()]
        spans.append({"traceId": "t", "spanId": str(number), "attributes": held, **times})
    workload = load(write(tmp_path, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    (turn,) = turns_of(workload)
    assert turn.messages == ({"role": "user", "content": "hi"},)
    assert [note.partition(", none of ")[0] for note in workload.notes] == [
        "left out 1: spans with messages whose operation is 'invoke_agent'"
    ]


def test_rows_of_a_session_out_of_order_are_sorted_or_told(tmp_path: Path) -> None:
    rows = ["9,s,70,5", "1,s,20,5", "4,s,40,5", "2,,8,1"]
    table = write_whole(tmp_path, "\n".join(["Timestamp,Session ID,Request tokens,Response tokens", *rows]))
    session = load(table).sessions["s"]
    assert [(turn.arrival_s, turn.synthetic.tokens) for turn in session.turns if turn.synthetic] == [
        (0, 20),
        (3, 40),
        (8, 70),
    ]
    lines = [{"session_id": "s", "timestamp": at, "input_length": 5} for at in (900, 100, 400)]
    notes = load(write(tmp_path, *lines)).notes
    assert "1 turn whose time is before that of the previous turn: the order is that of the file" in notes


def test_a_folder_is_read_with_its_links_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "f", tmp_path / "elsewhere"
    (folder / "a").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "0-about.json").write_text('{"rows": 2}')
    for place, name in ((folder / "a" / "x.JSON", "x"), (elsewhere / "y.ndjson", "y"), (folder / "old.bak", "z")):
        place.write_text(json.dumps({**WEKA, "id": name}))
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert detect(str(folder)) == "weka_trace"
    assert problems_of(str(folder)) == [f"0-about.json: line 1: {key}: Field required" for key in WEKA]
    (folder / "0-about.json").unlink()
    workload = load(str(folder))
    assert set(workload.sessions) == {"x", "y"}
    assert workload.notes[-1].startswith("left out 1 file without the ending of JSON (.json, ")
    assert workload.notes[-1].endswith(": old.bak")
    (folder / "gone.json").symlink_to(elsewhere / "gone.json")
    assert problems_of(str(folder)) == ["gone.json is a link to a file that is not there"]


SERVEGEN = [
    ("0,1,2,Gamma,1", "{}", "c-trace.csv: line 1: a window has 6 cells"),
    ("x,1,2,Gamma,1,1", "{}", "c-trace.csv: line 1: start: Input should be a valid number"),
    ("0,-1,2,Gamma,1,1", "{}", "c-trace.csv: line 1: rate: Input should be greater than or equal to 0"),
    ("0,1,2,Poisson,1,1", "{}", "c-trace.csv: line 1: family: Input should be Gamma, Weibull or empty"),
    ("0,1,2,Gamma,0,1", "{}", "c-trace.csv: line 1: shape: Input should be greater than 0"),
    ("0,1,2,Gamma,1,1", "[", "c-dataset.json: line 1: invalid JSON"),
    ("0,1,2,Gamma,1,1", "3", "c-dataset.json: line 1: Input should be a valid dictionary"),
    ("0,1,2,Gamma,1,1", '{"x": {}}', "c-dataset.json: line 1: x: Input should be a valid number"),
    ("0,1,2,Gamma,1,1", '{"0": {"output_tokens": "{}"}}', "c-dataset.json: line 1: 0.input_tokens: Field required"),
    (
        "0,1,2,Gamma,1,1",
        '{"0": {"input_tokens": "f()", "output_tokens": "{}"}}',
        "c-dataset.json: line 1: 0.input_tokens: Input",
    ),
    (
        "0,1,2,Gamma,1,1",
        '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{}"}}',
        "c-dataset.json: line 1: 0.input_tokens",
    ),
    ("0,1,2,Gamma,1,1", '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', "no client sends a request between 0 s and"),
    (
        "0,0,2,Gamma,1,1\n600,0,0,,0,0\n1200,1,2,Gamma,1,1",
        '{"0": {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"}}',
        "no client sends a request between 0 s and 600 s (options start, duration); windows with requests begin at 1200 s",
    ),
]


@pytest.mark.parametrize(("trace", "dataset", "problem"), SERVEGEN)
def test_a_bad_pool_is_refused_with_file_line_and_field(trace: str, dataset: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "c-trace.csv").write_text(trace + "\n")
    (tmp_path / "c-dataset.json").write_text(dataset)
    assert problems_of(str(tmp_path), "servegen")[0].startswith(problem)


def test_half_a_client_of_a_pool_is_told_apart_from_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "c-trace.csv").write_text("0,1,2,Gamma,1,1\n")
    (problem,) = problems_of(str(tmp_path))
    assert problem == "a client of a pool is two files, and c-dataset.json is missing beside the other"
    (tmp_path / "c-trace.csv").rename(tmp_path / "first_windows.csv")
    (problem,) = problems_of(str(tmp_path / "first_windows.csv"), "servegen")
    assert problem == "must be named as one of the two files of a client, NAME-trace.csv and NAME-dataset.json"


# --- nothing crashes -----------------------------------------------------------------------------------------------------

GOOD: dict[str, list[Any]] = {
    "weka_trace": [json.loads((TRACES / "weka_trace_0277_cut_subagent.json").read_text()), WEKA],
    "dynamo_request_trace": lines_of(TRACES / "dynamo_request_trace_v1_agent.jsonl"),
    "agentic_mooncake": lines_of(TRACES / "agentic_mooncake_v2_handmade.jsonl"),
    "tracelab": [ROUND],
    "otel_spans": [SPANS],
    "exgentic": [EXGENTIC],
    "mlperf_agentic": [ASKED, ANSWERED, TOOL],
    "speed_bench": [SPEED],
    "sagemaker_capture": [CAPTURE],
    "sglang_autobench": [AUTOBENCH, {"prompt": ["a", "b"], "output_len": 2}, {"system": "s", "content": ["a", "b", "c"]}],
    "sglang_token_trace": [TOKENS],
    "agentic_jsonl": [CALL_IN_TOKENS, {"session_id": "s", "arrival_time_ns": 0, "sub_requests": [CALL_IN_TOKENS] * 2}],
    **{name: lines_of(DATA / "aiperf" / f"{name}.jsonl") for name in AIPERF},
    **{name: lines_of(DATA / "evalscope" / f"{name}.jsonl") for name in ("custom_multi_turn", "share_gpt", "trie")},
}


@pytest.mark.parametrize("name", GOOD)
def test_good_rows_load_by_themselves(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, *GOOD[name])
    assert load(path).format == name
    assert FORMATS[name].needs


@pytest.mark.parametrize("name", GOOD)
@given(data=st.data())
def test_any_change_of_a_good_file_loads_or_is_refused(name: str, data: st.DataObject) -> None:
    switches = [option.name for option in FORMATS[name].options if option.kind == "boolean"]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(GOOD[name])
        place = data.draw(st.integers(0, len(rows) - 1))
        rows[place] = mutate(rows[place], data)
        if data.draw(st.booleans()):
            rows = [rows[place]]
        more = [data.draw(ANYTHING)] if data.draw(st.booleans()) else []
        path = write(Path(folder), *rows, *more)
        loads_or_is_refused(path, name, **{switch: data.draw(st.booleans()) for switch in switches})
        if FORMATS[name].recognises_directory is not never:
            Path(path).rename(f"{path}.jsonl")
            loads_or_is_refused(folder, name)


TABLES = ["tracelab_session_workload_example.csv", "azure2023_conv.csv", "blis_tracev2_data.csv", "burstgpt_v2_head4.csv"]


@pytest.mark.parametrize("file", TABLES)
@given(data=st.data())
def test_any_change_of_a_good_table_loads_or_is_refused(file: str, data: st.DataObject) -> None:
    lines = (TRACES / file).read_text().splitlines()
    place = data.draw(st.integers(0, min(len(lines) - 1, 5)))
    cells = lines[place].split(",")
    column = data.draw(st.integers(0, len(cells) - 1))
    cells[column] = data.draw(st.sampled_from(["", "x", "-1", "1e400", "nan", "\0", '"', "9" * 40, "0.5", "é"]))
    lines[place] = ",".join(cells)
    with tempfile.TemporaryDirectory() as folder:
        loads_or_is_refused(write_whole(Path(folder), "\n".join(lines)), None)


@given(noise=st.binary(max_size=80), name=st.sampled_from(sorted(name for name in FORMATS if name != "servegen")))
def test_noise_is_refused(noise: bytes, name: str) -> None:
    if FORMATS[name].generates:
        return
    with tempfile.TemporaryDirectory() as folder:
        loads_or_is_refused(write_whole(Path(folder), noise), name)


@pytest.mark.parametrize("name", ["weka_trace_0504.json", "tracelab_sanitized_codex_first_rounds.jsonl", "servegen"])
def test_hidden_files_of_a_folder_are_none_of_its_traces(tmp_path: Path, name: str) -> None:
    """As macOS writes them beside each file of an archive."""
    source = TRACES / name
    for file in [source] if source.is_file() else source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / f"._{file.name}").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".old").mkdir()
    (tmp_path / ".old/x.json").write_text("{")
    assert load(str(tmp_path), None, {"start": 22_200} if name == "servegen" else None).roots


def test_a_table_with_the_line_ends_of_no_system_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((TRACES / "azure2023_conv.csv").read_bytes().replace(b"\n", b"\r"))
    with pytest.raises(WorkloadError, match="no known CSV: its header has the columns 'TIMESTAMP'"):
        load(str(path))
