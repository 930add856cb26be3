"""weka_trace: recorded coding agents of kv-cache-tester, a JSON object a trace; a file, JSON lines, or a folder of them.

Published at github.com/callanjfox/kv-cache-tester and as the AgentX corpora; versions 5 to 7 differ in content only. A trace
is one tree: its parent's requests, those of the subagents that it starts, and agents that are flat among its requests, told
apart by what their prompts begin with. Each request is a whole prompt of hash blocks. It goes out as long after the previous
reply of its agent as in the recording. Scenarios also keep the recorded order between agents (`recorded_order`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from llmirage_client.workload.checking import Checker
from llmirage_client.workload.files import (
    ARRAY_OF_OBJECTS,
    JsonFault,
    fault,
    files_below,
    is_over_lines,
    parse,
    placed,
    problems_of,
    read_bytes,
    read_head,
    read_lines,
    read_records,
)
from llmirage_client.workload.format import Format, Option, any_of
from llmirage_client.workload.hash_blocks import NO_BLOCKS, BlockLists, ids_within, key_of, read_ids, recorded_turn
from llmirage_client.workload.loading import Loading, StrayKeys
from llmirage_client.workload.request_graph import (
    GraphError,
    Need,
    Recorded,
    RecordedRequest,
    agents,
    finished_before,
    sessions_of_play,
    shared_blocks,
)
from llmirage_client.workload.session import (
    Event,
    Problem,
    Session,
    SessionsOnDemand,
    SyntheticUser,
    Workload,
)

_SIDECAR_TOKENS, _SIDECAR_SHARE = 16_384, 0.1
_DIGEST_REPLY, _DIGEST_RATIO = 4_000, 20
_TRACE_KEYS = frozenset(
    ("id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals")
)
_REQUEST_KEYS = frozenset((
    "t", "type", "model", "in", "out", "hash_ids", "input_types", "output_types", "stop", "api_time", "ttft", "think_time",
))  # fmt: skip
_MARKER_KEYS = frozenset((
    "t", "type", "agent_id", "subagent_type", "duration_ms", "total_tokens", "tool_use_count", "status", "models",
    "requests", "tool_tokens", "system_tokens",
))  # fmt: skip
_TOUCH_S = 1e-6
_LARGE_BYTES = 256 << 20  # of a folder that is read on demand


def load(
    path: str,
    *,
    max_context_length: int | None = None,
    think_time_only: bool = False,
    global_ids: bool = False,
    recorded_order: bool = False,
    traces: int | None = None,
    on_demand: bool = False,
) -> Workload:
    """Load every trace of the file or folder.

    max_context_length: leave out traces with a longer prompt and reply.
    think_time_only: a request comes its `think_time` after the previous reply, where it has one.
    global_ids: traces with hashes that mean the same in all of them may be among these.
    recorded_order: a request waits for all requests of other agents that were over when it was sent in the recording, an
        agent that began during a request of its parent begins during it, and a tree holds its slot until all of it is over.
    traces: of these only the first are read, and files after them are not.
    on_demand: of a large folder read a trace when it begins; what is wrong with it is then told when the run comes to it.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    options = think_time_only, global_ids, recorded_order
    reader = _WekaReader(Loading(path), *options, max_context_length, traces)
    files = files_below(path)
    if on_demand and max_context_length is None and (roots := _roots_of(files[:traces])):

        def sessions_of(root: str, file: Path) -> Sequence[Session]:
            one = _WekaReader(Loading(path), *options)
            one.read_file(file, str(file.relative_to(path)))
            return one.tree(root)

        readers = {root: partial(sessions_of, root, file) for root, file in roots.items()}
        note = f"{len(readers):,} traces, each read when it begins: `llmirage check` reads them all"
        return Workload(
            FORMAT.name, path, SessionsOnDemand(readers), tuple(readers), (note,), frees_early=not recorded_order
        )
    for file in files:
        if reader.full:
            break
        reader.read_file(file, None if str(file) == path else str(file.relative_to(path)))
    return reader.workload()


@dataclass(slots=True, frozen=True)
class _Marker:
    """A subagent: where its first request is expected, and when it was over."""

    place: int
    name: str
    start_s: float
    end_s: float
    entries: _Entries


@dataclass(slots=True, frozen=True)
class _Entries:
    """The requests of an agent and the subagents among them. system_blocks: of its system prompt, as it is declared."""

    requests: tuple[Recorded, ...]
    markers: tuple[_Marker, ...]
    system_blocks: int

    @property
    def end_s(self) -> float | None:
        ends = [request.end_s for request in self.requests] + [marker.end_s for marker in self.markers]
        return max(ends, default=None)


@dataclass(slots=True, frozen=True)
class _Stream:
    """An agent of a trace. parent: the request that started it, None for the root; gate: the one that waits for its end.

    scope: the recorded agent, the root or that of a marker, among whose requests it was found.
    begins_s: where it starts in the recording, by its marker. flat: it has none.
    system_blocks: with which its first prompt begins.
    """

    name: str
    requests: Sequence[Recorded]
    scope: str
    parent: Recorded | None = None
    gate: Recorded | None = None
    begins_s: float = 0.0
    flat: bool = False
    system_blocks: int = 0


@dataclass(slots=True, frozen=True)
class _WekaTrace:
    name: str
    block_tokens: int
    entries: _Entries
    tokens: Mapping[int, int]  # of the prompts, by place
    timed: frozenset[int]  # places of requests whose duration is known
    waits_s: Mapping[int, float]  # before requests, instead of the pause in the recording


@dataclass(slots=True)
class _WekaReader:
    """The options of `load`, and what has been read so far."""

    loading: Loading
    think_time_only: bool
    global_ids: bool
    recorded_order: bool
    most_context: int | None = None
    most_traces: int | None = None
    sessions: list[Session] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    first: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    empty: int = 0
    too_long: int = 0
    dropped: int = 0

    @property
    def full(self) -> bool:
        """True once as many traces as are asked for have been read."""
        return len(self.roots) == self.most_traces

    def read_file(self, file: Path, name: str | None) -> None:
        with problems_of(name, self.loading.problems) as found:
            head = read_head(str(file))
            if ARRAY_OF_OBJECTS.match(head):
                for number, value in read_records(str(file), found):
                    if self.full:
                        break
                    self._read(json.dumps(value).encode(), number, name)
            elif not is_over_lines(head):
                for number, line in enumerate(read_lines(str(file)), start=1):
                    if self.full:
                        break
                    if line.strip():
                        self._read(line, number, name)
            else:
                self._read(read_bytes(str(file)), 1, name)

    def _read(self, data: bytes, line: int, file: str | None) -> None:
        check = Checker(line, file)
        lists = BlockLists(scope=_scope(_beginning(data)))
        try:
            value = lists.parse(data)
            if isinstance(value, dict) and (scope := _scope(value)) != lists.scope:
                lists = BlockLists(scope=scope)
                value = lists.parse(data)
            trace = self._trace(value, check, lists)
        except JsonFault:  # perhaps only in a list of hashes: read it plainly, for the place
            try:
                trace = self._trace(parse(data), check, None)
            except JsonFault as error:
                check.fail(None, f"invalid JSON: {error}")
                check.problems[-1] = replace(check.problems[-1], line=line + (error.line or 1) - 1)
                trace = None
        if check.problems:
            self.loading.problems += _with_lines(check.problems, data)
        elif trace is not None:
            self._add(trace, line, file)

    # --- what a trace says ---------------------------------------------------------------------------------------------

    def _trace(self, value: Any, check: Checker, lists: BlockLists | None) -> _WekaTrace | None:
        row = check.mapping(value, None)
        if row is None:
            return None
        self.loading.stray.look(row, _TRACE_KEYS, check)
        name = check.need(row, "id", check.name)
        size = check.need(row, "block_size", check.tokens)
        scope = row.get("hash_id_scope", "local")
        if scope != "local" and not (scope == "global" and self.global_ids):
            check.fail("hash_id_scope", "Input should be 'local' (global_ids=true takes 'global' too)")
        if row.get("models") is not None:
            check.texts(row["models"], "models")
        entries = check.need(row, "requests", check.items)
        if name is None or size is None or entries is None:
            return None
        body = _Body(check, lists, self.loading.stray, size, _scope(row))
        read = body.entries(row, entries, "", 0.0, relative=False)
        self.models |= body.models
        self.loading.without_reply += body.without_reply
        if not body.tokens:
            self.empty += 1
            return None
        if self.most_context is not None and body.longest > self.most_context:
            self.too_long += 1
            return None
        return _WekaTrace(
            name,
            size,
            read,
            body.tokens,
            frozenset(body.timed),
            body.thought_s if self.think_time_only else {},
        )

    # --- what it comes to ----------------------------------------------------------------------------------------------

    def _add(self, trace: _WekaTrace, line: int, file: str | None) -> None:
        place = f"{file or ''} line {line}".strip()
        if self.first.setdefault(trace.name, place) != place:
            message = f"'{trace.name}' is also in {self.first[trace.name]}; ids must be unique"
            self.loading.problems.append(Problem(message, line, "id", file))
            return
        streams = list(self._streams(trace.name, trace.entries, trace, None))
        if not streams:
            self.empty += 1
            return
        try:
            sessions = sessions_of_play(list(_requests(trace, streams, line, self.recorded_order)), self.names)
        except GraphError as error:
            self.loading.problems.append(Problem(str(error), line, f"request {error.request.id}", file))
            return
        self.roots.append(sessions[0].id)
        self.sessions += sessions

    def _streams(self, name: str, entries: _Entries, trace: _WekaTrace, started: _Stream | None) -> Iterator[_Stream]:
        """Yield the agents of a trace or of a subagent, the main one first. started: how the subagent begins."""
        found = agents(entries.requests)
        if not found:
            self.dropped += len(entries.markers)
            return
        how = started or _Stream(name, (), name)
        main, system_blocks = found[0].requests, entries.system_blocks
        yield replace(how, requests=main, system_blocks=system_blocks)
        system = next((request.ids[:system_blocks] for request in found[0].talk if len(request.ids)), NO_BLOCKS)
        between = ":" if started else "::"
        for number, (own, group, _) in enumerate(found[1:]):
            declared = 0 < system_blocks == len(system) == shared_blocks(system, own[0].ids)
            how_own = replace(how, requests=own, system_blocks=system_blocks if declared else 0)
            if _is_sidecar(own, found[0].talk, trace):
                kind = f"aux:{number:03}"
            else:
                kind = f"fa:{number:03}" if group is None else f"wg:{group[0]:03}_{group[1]:03}"
            suffix = f"{name}{between}{kind}"
            if started is not None:  # siblings, that begin and end with their subagent
                yield replace(how_own, name=suffix)
                continue
            parent = _before(main, own[0].place, own[0].start_s) or main[0]
            end_s = max(request.end_s for request in own)
            gate = _gate(main, own[0].place, end_s)
            yield replace(how_own, name=suffix, parent=parent, gate=gate, begins_s=own[0].start_s, flat=True)
        for marker in entries.markers:
            parent_of_marker = _before(main, marker.place, marker.start_s)
            if parent_of_marker is None:
                self.dropped += 1
                continue
            gate = _gate(main, marker.place, marker.end_s)
            agent = f"{trace.name}::sa:{marker.name}"
            child = _Stream(agent, (), agent, parent_of_marker, gate, marker.start_s)
            yield from self._streams(agent, marker.entries, trace, child)

    def tree(self, root: str) -> Sequence[Session]:
        """Return the sessions of the only trace read. Raises WorkloadError with its problems."""
        self.loading.raise_problems()
        if self.roots not in ([root], []):
            message = f"a file has not only the trace {root!r} with which it begins: give the option on_demand=false"
            raise fault(self.loading.path, message)
        return self.sessions or [Session(root, (), "isolated")]

    def workload(self) -> Workload:
        """Return the workload. Raises WorkloadError with the problems of all files."""
        why = f"; {self.too_long} have a longer context than {self.most_context}" if self.too_long else ""
        self.loading.finish(self.sessions, f"has no trace with requests{why}")
        notes = self.loading.notes()
        if self.models:
            notes.append(f"recorded with {', '.join(sorted(self.models)[:4])}: not sent, all requests go to the run's model")
        for count, what in (
            (self.empty, "traces without requests"),
            (self.too_long, f"traces with a context longer than {self.most_context}"),
            (self.dropped, "subagents before the first request of their parent"),
        ):
            if count:
                notes.append(f"left out {count:,}: {what}")
        sessions = {session.id: session for session in self.sessions}
        return Workload(
            FORMAT.name,
            self.loading.path,
            sessions,
            tuple(self.roots),
            tuple(notes),
            frees_early=not self.recorded_order,
        )


def _roots_of(files: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each trace by its name, of many large files with one each; else none."""
    found: dict[str, Path] = {}
    if len(files) < 2 or sum(file.stat().st_size for file in files) < _LARGE_BYTES:
        return found
    for file in files:
        head = read_head(str(file))
        name = _beginning(head).get("id")
        if file.suffix != ".json" or not isinstance(name, str) or name in found:
            return {}
        found[name] = file
    return found


@dataclass(slots=True)
class _Body:
    """Reads the requests of one trace."""

    check: Checker
    lists: BlockLists | None
    stray: StrayKeys
    block_tokens: int
    scope: int | None
    tokens: dict[int, int] = field(default_factory=dict)
    timed: set[int] = field(default_factory=set)
    thought_s: dict[int, float] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    next_place: int = 0
    without_reply: int = 0
    longest: int = 0

    def entries(
        self, agent: Mapping[str, Any], values: Sequence[Any], prefix: str, marker_s: float, *, relative: bool
    ) -> _Entries:
        """Return the requests of an agent. relative: times below the marker's count from it."""
        check = self.check
        known = [check.given(agent, key, check.tokens_from_0, prefix) or 0 for key in ("tool_tokens", "system_tokens")]
        system_blocks = -(-sum(known) // self.block_tokens)
        requests: list[Recorded] = []
        markers: list[_Marker] = []
        for at, entry in check.each(values, f"{prefix}requests"):
            place = self.next_place
            self.next_place += 1
            start_s = check.need(entry, "t", check.number, at) or 0.0
            if relative and start_s + _TOUCH_S < marker_s:
                start_s += marker_s
            if entry.get("type") == "subagent":
                markers.append(self._marker(entry, at, place, start_s))
            else:
                requests.append(self._request(entry, at, place, start_s))
        return _Entries(tuple(requests), tuple(markers), system_blocks)

    def _marker(self, entry: Mapping[str, Any], at: str, place: int, start_s: float) -> _Marker:
        check = self.check
        self.stray.look(entry, _MARKER_KEYS, check, at)
        name = check.need(entry, "agent_id", check.name, at)
        duration_s = check.ms_as_s(entry, "duration_ms", at)
        entries = self.entries(entry, check.need(entry, "requests", check.items, at) or [], at, start_s, relative=True)
        end_s = entries.end_s if duration_s is None else start_s + duration_s
        return _Marker(place, name or "", start_s, start_s if end_s is None else end_s, entries)

    def _request(self, entry: Mapping[str, Any], at: str, place: int, start_s: float) -> Recorded:
        check = self.check
        self.stray.look(entry, _REQUEST_KEYS, check, at)
        if entry.get("type", "n") not in ("n", "s"):
            check.fail(f"{at}type", "Input should be 'n', 's' or 'subagent'")
        tokens = check.need(entry, "in", check.tokens, at) or 1
        output = check.need(entry, "out", check.tokens_from_0, at) or 0
        model = check.given(entry, "model", check.text, at) or ""
        api_s = check.given(entry, "api_time", check.number, at)
        thought_s = check.given(entry, "think_time", check.number, at)
        ids = self._ids(entry.get("hash_ids"), f"{at}hash_ids")[: tokens // self.block_tokens]
        self.tokens[place] = tokens
        self.models |= {model} - {""}
        self.without_reply += not output
        self.longest = max(self.longest, tokens + output)
        if api_s is not None:
            self.timed.add(place)
        if thought_s is not None:
            self.thought_s[place] = thought_s
        return Recorded(place, start_s, start_s + (api_s or 0.0), model, output, ids)

    def _ids(self, value: object, field: str) -> Any:
        if self.lists is not None and isinstance(value, list) and len(value) == 1:
            return self.lists.ids(value)
        ids = read_ids(value, self.check, field)
        return ids if self.scope is None else ids_within(ids, self.scope)


def _requests(trace: _WekaTrace, streams: Sequence[_Stream], line: int, recorded_order: bool) -> Iterator[RecordedRequest]:
    """Yield the requests of a trace with what each waits for.

    A subagent starts as AIPerf starts it: after the reply to its parent's request, from which on the time up to the marker
    is not waited. By the recorded order it starts after the dispatch of that request if it began before the reply.
    """
    begins_s: dict[object, float] = {}
    joined: dict[int, set[int]] = {}
    scopes: dict[str, list[list[tuple[int, float, float]]]] = {}
    for stream in streams:
        scopes.setdefault(stream.scope, []).append([(r.place, r.start_s, r.end_s) for r in stream.requests])
        if stream.parent is None:
            continue
        group = stream.parent.place, stream.gate and stream.gate.place, stream.flat
        begins_s[group] = min(begins_s.get(group, stream.begins_s), stream.begins_s)
        if stream.gate is not None:
            joined.setdefault(stream.gate.place, set()).add(stream.requests[-1].place)
    earlier: dict[int, list[int]] = {}
    for agents_of_scope in scopes.values() if recorded_order else ():
        earlier |= finished_before(agents_of_scope)
    for stream in streams:
        previous: Recorded | None = None
        system_blocks = stream.system_blocks
        for request in stream.requests:
            if system_blocks:
                shared = len(request.ids) if previous is None else shared_blocks(previous.ids, request.ids)
                system_blocks = min(system_blocks, shared)
            system_tokens = system_blocks * trace.block_tokens
            joins = joined.get(request.place, ())
            needs: dict[tuple[int, Event], float] = {}
            for place in sorted({*joins, *earlier.get(request.place, ())}):
                needs[place, "reply"] = 0.0
            if previous is not None:
                pause_s = max(request.start_s - previous.end_s, 0.0)
                needs[previous.place, "reply"] = trace.waits_s.get(request.place, pause_s)
            elif (parent := stream.parent) is not None:
                begun_s = begins_s[parent.place, stream.gate and stream.gate.place, stream.flat]
                needs.pop((parent.place, "reply"), None)  # what starts it comes last: see sessions_of_play
                if recorded_order and parent.place in trace.timed and begun_s < parent.end_s:
                    needs[parent.place, "dispatch"] = max(request.start_s - parent.start_s, 0.0)
                else:
                    needs[parent.place, "reply"] = max(request.start_s - begun_s, 0.0)
            prompt = SyntheticUser(
                trace.tokens[request.place],
                key_of("weka", trace.name, request.place),
                block_ids=request.ids,
                block_tokens=trace.block_tokens,
                system_tokens=min(system_tokens, trace.tokens[request.place]),
            )
            waits = [Need(str(place), delay_s, event, place in joins) for (place, event), delay_s in needs.items()]
            turn = recorded_turn(prompt, request.output_tokens)
            yield RecordedRequest(str(request.place), stream.name, turn, request.start_s, tuple(waits), line)
            previous = request


def _before(main: Sequence[Recorded], place: int, start_s: float) -> Recorded | None:
    """Return the last request of an agent that stands before that place of the file, and had started by then."""
    found = [request for request in main if request.place < place and request.start_s <= start_s + _TOUCH_S]
    return found[-1] if found else None


def _gate(main: Sequence[Recorded], place: int, end_s: float) -> Recorded | None:
    """Return the first request after that place of the file that started when all was over."""
    return next((request for request in main if request.place > place and request.start_s + _TOUCH_S >= end_s), None)


def _is_sidecar(own: Sequence[Recorded], main: Sequence[Recorded], trace: _WekaTrace) -> bool:
    """Return whether it is a single call beside the agent: of another model, of little context, or a digest."""
    if len(own) > 1:
        return False
    tokens, output = trace.tokens[own[0].place], own[0].output_tokens
    largest = max(trace.tokens[request.place] for request in main)
    if own[0].model != main[0].model or tokens < max(_SIDECAR_TOKENS, int(_SIDECAR_SHARE * largest)):
        return True
    return 0 < output < _DIGEST_REPLY and tokens >= _SIDECAR_TOKENS and tokens > _DIGEST_RATIO * output


_NAME = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.)*")')
_GLOBAL = re.compile(rb'"hash_id_scope"\s*:\s*"global"')
_BEGINNING_BYTES = 4096


def _beginning(data: bytes) -> Mapping[str, Any]:
    """Return a guess of a trace's id and scope from its first bytes."""
    head = data[:_BEGINNING_BYTES]
    name = _NAME.search(head)
    try:
        found: dict[str, Any] = {} if name is None else {"id": parse(name.group(1))}
    except JsonFault:
        found = {}
    return found | ({"hash_id_scope": "global"} if _GLOBAL.search(head) else {})


def _scope(trace: Mapping[str, Any]) -> int | None:
    """Return the scope within which a trace's ids hold; None: everywhere."""
    return None if trace.get("hash_id_scope") == "global" else key_of("weka", trace.get("id"))


def _with_lines(problems: Sequence[Problem], data: bytes) -> Sequence[Problem]:
    """Return the problems of a trace over several lines with the lines of their fields."""
    if b"\n" not in data.strip():
        return problems
    try:
        return placed(problems, data)
    except (ValueError, IndexError):
        return problems


FORMAT = Format(
    name="weka_trace",
    summary="recorded coding agents (WEKA kv-cache-tester, AgentX corpora) with subagents, as lengths and block hashes",
    needs="'id', 'block_size' and 'requests' in every object",
    recognises=any_of(("requests.hash_ids",), ("requests", "block_size"), ("requests", "hash_id_scope")),
    load=load,
    aliases=("weka", "kv_cache_tester"),
    order=15,
    options=(
        Option("max_context_length", "integer", "leave out traces with a longer prompt and reply, in tokens", minimum=1),
        Option("think_time_only", "boolean", "wait think_time after a reply instead of the recorded pause", False),
        Option("global_ids", "boolean", "read traces whose hash_id_scope is global", False),
        Option("traces", "integer", "read only the first traces; num_dataset_entries sets it", minimum=1),
        Option("on_demand", "boolean", "read traces of a large folder as they begin; simulate sets it", False),
        Option("recorded_order", "boolean", "keep the recorded order between agents, as scenarios do", False),
    ),
    folder=True,
)
