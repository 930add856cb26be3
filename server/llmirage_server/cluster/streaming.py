"""Which tokens of a reply an engine sends together: its `stream_interval`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StreamInterval:
    """The first token goes out at once, then chunks of `tokens`, and at the end the rest.

    from_start: chunks end where whole intervals do, counted from the reply's first token: 1, n, 2n. Else they are counted
    from the token behind it: 1, n + 1, 2n + 1.

    vLLM (v1/engine/output_processor.py) and SGLang (managers/scheduler_components, stream_output) do the latter,
    TensorRT-LLM (_torch/pyexecutor/py_executor.py, _handle_responses) the former.
    """

    tokens: int
    from_start: bool = False

    def ends(self, sent: int, produced: int, total: int) -> list[int]:
        """Where the chunks end that go out with `produced` of `total` tokens, `sent` of which have gone out before."""
        first = sent + self.tokens - (sent - (not self.from_start)) % self.tokens
        ends = list(range(first, produced + 1, self.tokens))
        if not sent and produced and first != 1:
            ends.insert(0, 1)
        if sent < produced == total and (not ends or ends[-1] != total):
            ends.append(total)
        return ends

    def seen_s(self, times_s: Times, total: int) -> Times:
        """When clients see tokens that came at these times; of those alone that have gone out. total: see `ends`."""
        ends = np.array(self.ends(0, len(times_s), total), dtype=np.int64)
        return np.repeat(times_s[ends - 1], np.diff(ends, prepend=0))
