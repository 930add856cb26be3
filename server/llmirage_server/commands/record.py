"""`llmirage record` and `llmirage record convert`: options. The work is done by record_actions.py."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

import click

from llmirage_server.commands.serve import ENVIRONMENT
from llmirage_server.config import ClusterConfig
from llmirage_server.config.cluster import url_problem
from llmirage_shared.command_line import OPTIONS, SettingsGroup, argument, command, lazily, options
from llmirage_shared.settings import again, setting, switch

_FORMATS = ("auto", "vcr", "pairs")


class RecordSettings:
    """What is recorded, and where the proxy listens."""

    upstream: str | None = setting(
        None, OPTIONS, "Server to record, such as https://api.openai.com/v1.", metavar="URL", check=url_problem
    )
    out: str | None = setting(None, OPTIONS, "Folder for the recordings, one file for each exchange.", metavar="DIR")
    record_workload: str | None = setting(
        None,
        OPTIONS,
        "New file for the requests as a workload that `run` and `simulate` replay; --out may then be left out.",
        metavar="FILE",
    )
    host: str = setting("127.0.0.1", OPTIONS, "Address to listen on.")
    port: int = setting(8001, OPTIONS, "Port to listen on; 0: any free port.", short="p", least=0, most=65535)
    json: bool = switch(OPTIONS, "Print JSON lines: the address, then each recording.")
    key: str | None = again(
        ClusterConfig,
        "upstream_key",
        None,
        f"Key for the upstream, in place of those that requests bring; or {ENVIRONMENT}_UPSTREAM_KEY.",
        group=OPTIONS,
        unset="the request's",
    )


class RecordConvertSettings:
    """What is converted, and where to."""

    out: str = setting(MISSING, OPTIONS, "Folder for the recordings.", metavar="DIR")
    json: bool = switch(OPTIONS, "Print what was written, as JSON.")
    format: str = setting("auto", OPTIONS, "What the files are.", spelled="from", choices=_FORMATS)


def _record(**given: Any) -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        lazily("llmirage_server.commands.record_actions:record")(**given)


record = SettingsGroup(
    "record",
    callback=_record,
    invoke_without_command=True,
    no_args_is_help=True,
    params=[
        *options(RecordSettings, but=("upstream_key",)),
        *options(RecordSettings, "upstream_key", environment=ENVIRONMENT),
    ],
    help="""Record what a server answers, for `serve --replay` (docs/recordings.md).

    A proxy: give its address to the application as the base URL. It passes every request on and every response back as it
    comes, and writes exchanges of chat, completions, responses, messages and embeddings to files. Keys are not in them.
    """,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=(
        "llmirage record --upstream https://api.openai.com/v1 --out recordings",
        "llmirage record --upstream http://localhost:8000/v1 --out recordings --port 8002",
    ),
)
record.add_command(
    command(
        "convert",
        "llmirage_server.commands.record_actions:convert",
        [argument("files", "FILE...", many=True), *options(RecordConvertSettings)],
        """Make recordings of what other tools recorded.

        Cassettes of VCR.py and pytest-recording (YAML), and pairs of a request and a response (JSONL).""",
        examples=(
            "llmirage record convert cassette.yaml --out recordings",
            "llmirage record convert pairs.jsonl --from pairs --out recordings",
        ),
    )
)
