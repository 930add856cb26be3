"""What all results have in common: figures, a frame, JSON, an HTML page, and how consoles and notebooks show them."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import json
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from llmirage_client.report.screen import Block, drawn, print_blocks
from llmirage_shared.settings import ConfigError, did_you_mean

Progress = bool | Callable[[str], None] | None
_HEIGHT_PX = 640


def framed(page: str) -> str:
    """Return the page in a frame of its own: neither its styles nor the notebook's reach the other."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="llmirage" '
        f'style="width:100%;height:{_HEIGHT_PX}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )


def progress_stream(progress: Progress) -> TextIO:
    """Where a function's progress goes. None: into the notebook, if there is one; True: there, else to standard error."""
    if callable(progress):
        return _Lines(progress)
    if progress not in (None, True, False):
        raise ConfigError([f"progress must be true, false or a function, not {progress!r}"])
    if progress is not False and (display := _notebook_display()) is not None:
        return _Lines(display)
    return sys.stderr if progress else _Lines(lambda line: None)


class _Lines(io.StringIO):
    """A stream that passes on each line that is drawn. columns: it has room for long ones."""

    columns = 400

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell_line = tell

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if line := text.replace("\r", "").replace("\x1b[K", "").strip():
            self._tell_line(line)
        return len(text)


def _notebook_display() -> Callable[[str], None] | None:
    """Return a function that replaces the line shown in the running cell; None outside of notebooks."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    publisher = shell.display_pub
    place = {"display_id": f"llmirage-{uuid.uuid4()}"}
    shown: list[str] = []

    def show(line: str) -> None:
        data = {"text/plain": line, "text/html": f'<code style="white-space:pre">{html.escape(line)}</code>'}
        publisher.publish(data=data, transient=place, update=bool(shown))
        shown[:] = [line]

    return show


class SummaryFigures(Mapping[str, Any]):
    """The JSON that a command prints, with attributes: `figures.ttft_ms.p99` is `figures["ttft_ms"]["p99"]`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: SummaryFigures(one) if isinstance(one, Mapping) else one for name, one in values.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"there is no figure {name!r}{did_you_mean(name, self.__dict__.get('_values', ()))}")
        return self._values[name]

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._values])

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: one.as_dict() if isinstance(one, SummaryFigures) else one for name, one in self._values.items()}

    def to_json(self) -> str:
        """As the command prints it, in one line. What is not a number is null."""
        return json.dumps(_finite(self.as_dict()))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

FrameLibrary = Literal["pandas", "polars"]
_WIDTH = 100  # characters, of a text without a terminal


class Result:
    """The figures of `summary` are attributes, too. `print` and rich show what the command shows; notebooks its charts."""

    _workload: Any = None  # of a LoadedWorkload

    @cached_property
    def summary(self) -> SummaryFigures:
        """The figures that the command prints with --json."""
        return SummaryFigures(self._data())

    def to_json(self) -> str:
        """Return the figures as the command prints them with --json."""
        return self.summary.to_json()

    def to_frame(self, library: FrameLibrary | None = None) -> Any:
        """Return a DataFrame of pandas, else of polars, whichever is installed. Raises ImportError for neither."""
        return frame_of(self._columns(), library)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the HTML page: one file that needs nothing else. Raises OSError."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(self._page().encode("utf-8", "replace"))
        return place

    # --- of each kind of result -------------------------------------------------------------------------------------

    def _data(self) -> Mapping[str, Any]:
        """Return the figures of the summary."""
        raise NotImplementedError

    def _columns(self) -> Mapping[str, Any]:
        """Return the columns of the frame."""
        raise NotImplementedError

    def _page(self, *, brief: bool = False) -> str:
        """Return the HTML page. brief: the charts that say most, for a notebook."""
        raise NotImplementedError

    def _blocks(self) -> Iterable[Block]:
        """Return the blocks that the command shows."""
        raise NotImplementedError

    def _line(self) -> str:
        """Return a description of one line."""
        raise NotImplementedError

    # --- how it shows -----------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.summary:
            near = "" if name.startswith("_") else did_you_mean(name, self.summary)
            raise AttributeError(f"{type(self).__name__} has no {name!r}{near}")
        return self.summary[name]

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.summary])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"

    def __str__(self) -> str:
        stream = io.StringIO()
        print_blocks(self._blocks(), stream, width=_WIDTH)
        return stream.getvalue().strip("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from drawn(self._blocks(), options.max_width, " (print() shows them)")

    def _repr_html_(self) -> str:
        return framed(self._page(brief=True))


def workload_of(given: str | os.PathLike[str] | Result | None) -> Any:
    """Return a workload as commands take it: a name, or what `load_workload` holds. Raises ConfigError."""
    if not isinstance(given, Result):
        return None if given is None else os.fspath(given)
    if given._workload is None:
        raise ConfigError([f"workload must be a file, or what load_workload or generate returned, not {given!r}"])
    return given._workload


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of mappings, one within another as `ttft_p99_ms` and `memory.kv_tokens`; lists are left out."""
    flat = [dict(_flat(row)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: [row.get(name) for row in flat] for name in names}


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            if name.endswith("_ms"):
                yield from ((f"{before}{name.removesuffix('_ms')}_{statistic}_ms", one) for statistic, one in value.items())
            else:
                yield from _flat(value, f"{before}{name}.")
        elif not isinstance(value, list | tuple):
            yield before + name, value


def frame_of(columns: Mapping[str, Any], library: FrameLibrary | None) -> Any:
    """Return a frame of the library, or of one that is installed. Raises ImportError, ConfigError."""
    if library not in (None, "pandas", "polars"):
        raise ConfigError([f"library must be one of pandas, polars; not {library!r}"])
    for name in (library,) if library else ("pandas", "polars"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).DataFrame(dict(columns))
    raise ImportError(f"this needs {library or 'pandas or polars'}: pip install {library or 'pandas'}")
