"""`llmirage.Server`: a simulated cluster behind the OpenAI API, in this process and, if asked for, on a port."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from llmirage._settings import PathName, named_values, takes_settings
from llmirage_client.simulator import serving
from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError, at_call, settings_of
from llmirage_shared.virtual_time import run

if TYPE_CHECKING:
    from types import TracebackType

    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    from llmirage._requests import ClientVerdict, Expected, ServedRequest

T = TypeVar("T")

Script = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]
Faults = str | os.PathLike[str] | Sequence[str | Mapping[str, Any]]

# A test that never looks at its requests does not need them.
expect: Callable[..., list[ServedRequest]] = at_call("llmirage._requests:expect")
served_request: Callable[[Any], ServedRequest] = at_call("llmirage._requests:served_request")
verdict_of: Callable[[Any], ClientVerdict] = at_call("llmirage._requests:verdict_of")

_IN_PROCESS = "http://llmirage"
_KEY = "unused"
_OWN_ARGUMENTS = ("self", "cluster", "port", "host", "virtual_time", "script", "faults")


class FaultOnOrder:
    """A fault in force."""

    def __init__(self, rule: Any, remove: Callable[[int], bool]) -> None:
        self._rule = rule
        self._remove = remove

    @property
    def happened(self) -> int:
        """How often."""
        return int(self._rule.happened)

    def remove(self) -> None:
        """Take it out of force."""
        self._remove(self._rule.number)

    def __repr__(self) -> str:
        return f"<fault {self._rule.fault.kind}: happened {plural(self.happened, 'time')}>"


class Server:
    """A simulated LLM cluster with the API of OpenAI, Anthropic, vLLM and SGLang. Use it in a `with` statement.

    Requests reach it in process, through `transport` and the clients that it makes, and over a port if there is one.
    Several servers live side by side, each with its own cluster, speed and journal.
    """

    @takes_settings(serving.ClusterConfig)
    def __init__(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        virtual_time: bool = False,
        script: Script | None = None,
        faults: Faults | None = None,
        model: str | None = None,
        gpu: str | None = None,
        instances: int | None = None,
        weights: str | None = None,
        engine: str | None = None,
        tp: int | None = None,
        pp: int | None = None,
        dp: int | None = None,
        ep: int | None = None,
        router: str | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        enable_chunked_prefill: bool | None = None,
        kv_cache_dtype: str | None = None,
        gpu_memory_utilization: float | None = None,
        enable_prefix_caching: bool | None = None,
        num_speculative_tokens: int | None = None,
        acceptance_rate: float | None = None,
        block_size: int | None = None,
        ttft: float | None = None,
        itl: float | None = None,
        speed: float | None = None,
        served_model_name: str | Sequence[str] | None = None,
        accept_models: Literal["any", "served"] | None = None,
        tokenizer: str | None = None,
        replies: Literal["prose", "echo"] | None = None,
        reply_tokens: int | None = None,
        exact_length: bool | None = None,
        dialect: Literal["openai", "vllm", "sglang", "trtllm"] | None = None,
        api_key: str | Sequence[str] | None = None,
        rate_limit: int | None = None,
        replay: PathName | None = None,
        upstream: str | None = None,
        seed: int | None = None,
        set: Mapping[str, object] | None = None,
    ) -> None:
        """Make a server; it starts in a `with` statement, or by `start`.

        cluster: a cluster file, or bundled:NAME. port, host: port 0 for a free one; None: in process only.
        virtual_time: whether the clock skips what clients would only wait for.
        script: a script's file, its content, or a list of rules.
        faults: a file of faults, or a list such as ["status; status=429; times=2"].
        set: other settings of a cluster by name, such as {"kv_store_gib": 64}.

        The settings are those of `llmirage serve`, with the same units and limits. Raises ConfigError with all problems.
        """
        given = {name: value for name, value in locals().items() if name not in _OWN_ARGUMENTS}
        files, self._inline_script = _script_of(script)
        listed = None if faults is None or isinstance(faults, str | os.PathLike) else faults
        given |= {"script": files, "faults": None if listed is not None else faults}
        known = named_values(given, settings_of(serving.ClusterConfig))
        if virtual_time and "speed" in known:
            raise ConfigError(["speed: in virtual time nothing waits; leave out speed or virtual_time"])
        if port is not None and not (isinstance(port, int) and 0 <= port <= 65535):
            raise ConfigError([f"port must be at least 0 and at most 65,535, not {port!r}"])
        self._place = host, port
        self._server = serving.Serving(
            None if cluster is None else os.fspath(cluster), known, script=self._inline_script, skips=virtual_time
        )
        if listed is not None:
            self._server.add_faults(listed, "faults")

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Open the port, if there is one. `with` does it; a second call does nothing. Raises OSError for a port in use."""
        host, port = self._place
        if port is not None and self._server.url is None:
            self._server.open(host, port)
        return self

    def close(self) -> None:
        """End what is under way, and leave no thread, port or connection. A second call does nothing."""
        self._server.close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<llmirage.Server {', '.join(self.models)} at {self.url}>"

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address. Without a port only `transport` knows it."""
        if self._place[1] is not None and self._server.url is None:
            raise RuntimeError("the server has no port before it starts: use it in a `with` statement")
        return self._server.url or _IN_PROCESS

    @property
    def base_url(self) -> str:
        """What the SDKs call base_url: the address with /v1."""
        return f"{self.url}/v1"

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the served models."""
        return self._server.models

    @property
    def app(self) -> Any:
        """The ASGI application."""
        return self._server.app

    @property
    def transport(self) -> Any:
        """The way into this server for a Client of httpx or httpx2: `httpx.Client(transport=server.transport)`."""
        return self._server.transport

    @property
    def async_transport(self) -> Any:
        """The same for an AsyncClient, on any event loop of asyncio or trio.

        On a loop of virtual time (`llmirage.run_in_virtual_time`) the server runs on that loop, exact to the last bit.
        """
        return self._server.transport

    def openai(self, **options: Any) -> OpenAI:
        """Return a client of the `openai` package that asks this server in process. options: of openai.OpenAI."""
        return self._client("openai", "OpenAI", "DefaultHttpxClient", "/v1", options)  # type: ignore[no-any-return]

    def async_openai(self, **options: Any) -> AsyncOpenAI:
        """Return the asynchronous client of the `openai` package. options: of openai.AsyncOpenAI."""
        return self._client("openai", "AsyncOpenAI", "DefaultAsyncHttpxClient", "/v1", options)  # type: ignore[no-any-return]

    def anthropic(self, **options: Any) -> Anthropic:
        """Return a client of the `anthropic` package that asks this server in process. options: of anthropic.Anthropic."""
        return self._client("anthropic", "Anthropic", "DefaultHttpxClient", "", options)  # type: ignore[no-any-return]

    def async_anthropic(self, **options: Any) -> AsyncAnthropic:
        """Return the asynchronous client of the `anthropic` package. options: of anthropic.AsyncAnthropic."""
        return self._client("anthropic", "AsyncAnthropic", "DefaultAsyncHttpxClient", "", options)  # type: ignore[no-any-return]

    # --- what it was asked ------------------------------------------------------------------------------------------

    @property
    def requests(self) -> list[ServedRequest]:
        """The last 1,000 requests, oldest first, running ones among them."""
        return [served_request(entry) for entry in self._server.entries()]

    def expect(self, times: int | None = None, /, **fields: Expected) -> list[ServedRequest]:
        """Return the requests with these fields: `server.expect(1, model="gpt-4o", user="weather")`.

        times: how many there must be; None: at least one. Texts of user, system, reply, error, path and rule need to occur
        only; other values must be equal. An `re.compile(...)` must be found in the text; a function must return true.
        Raises ExpectationError, an AssertionError whose message shows the nearest request and which fields differ.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test, not this one
        try:
            return expect(self.requests, times, fields)
        except (AssertionError, ConfigError) as error:
            raise error.with_traceback(None) from None  # without frames of this package below

    def verdict(self, unused_s: float = 5.0) -> ClientVerdict:
        """How the clients met refusals, broken replies and connections (docs/verdict.md).

        unused_s: a connection unused for so long, while the client opens another one, is leaked.
        """
        return verdict_of(self._server.judged(unused_s))

    def metrics(self) -> dict[str, float]:
        """Return the values of /metrics by their names with labels, as Prometheus writes them: `vllm:x{model_name="m"}`."""
        samples = {}
        for line in self._server.metrics().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    @property
    def now_s(self) -> float:
        """The cluster's time, in seconds."""
        return self._server.now_s()

    # --- what it does -----------------------------------------------------------------------------------------------

    def script(self, script: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, replace: bool = False) -> None:
        """Put a script's rules before those in force, or in their place. Raises ConfigError with all problems.

        script: as a script's file has it (docs/scripts.md), or a list of rules.
        """
        rules = {"rules": list(script)} if isinstance(script, Sequence) else script
        self._server.add_script(rules, replace)

    def fault(self, kind: str | Mapping[str, Any], **parameters: Any) -> FaultOnOrder:
        """Inject a fault of docs/faults.md: `server.fault("status", status=429, times=2)`. Raises ConfigError."""
        fault = {"kind": kind, **parameters} if isinstance(kind, str) and parameters else kind
        [rule] = self._server.add_faults([fault], "fault")
        return FaultOnOrder(rule, self._server.remove_fault)

    def advance(self, seconds: float) -> None:
        """Let that much time pass at once, with all that happens in it. Needs virtual_time. Raises ConfigError.

        It takes the place of `time.sleep` in clients: `monkeypatch.setattr(time, "sleep", server.advance)`.
        """
        if not seconds >= 0:
            raise ConfigError([f"seconds must be at least 0, not {seconds!r}"])
        self._server.advance(float(seconds))

    def reset(self) -> None:
        """Forget requests, scripts and faults of run time, and the prefix cache; the clock goes on."""
        self._server.reset()

    def _client(self, package: str, name: str, http: str, path: str, options: dict[str, Any]) -> Any:
        try:
            module = importlib.import_module(package)
        except ImportError:
            raise ImportError(f"this needs the package {package}: pip install {package}") from None
        given = {"base_url": f"{_IN_PROCESS}{path}", "api_key": self._server.api_key or _KEY, **options}
        if "http_client" not in given:
            given["http_client"] = getattr(module, http)(transport=self.transport)
        return getattr(module, name)(**given)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, with servers and their clients, on an event loop whose clock jumps: `asyncio.sleep` takes no time.

    Times are exact and repeatable. Real input and output is impossible there.
    """
    return run(main)


def _script_of(script: Script | None) -> tuple[tuple[str, ...] | None, Mapping[str, Any] | None]:
    """Paths of files, and a script as data."""
    if script is None or isinstance(script, Mapping):
        return None, script
    if isinstance(script, str | os.PathLike):
        return (os.fspath(script),), None
    if script and all(isinstance(one, str | os.PathLike) for one in script):
        return tuple([os.fspath(one) for one in script]), None
    return None, {"rules": list(script)}
