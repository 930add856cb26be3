"""Published acceptance lengths of speculative decoding, by model and method."""

from __future__ import annotations

from dataclasses import replace

from llmirage_server.perf.catalogue.data_file import data_file
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.speculation import Speculative, rate_of_length


def with_published_acceptance(speculative: Speculative, model: ModelSpec) -> Speculative:
    """The same with what was measured for the model, method and number of draft tokens, if somebody has published it.

    Lengths of other numbers of draft tokens lie on the line between their neighbours. Outside, the acceptance rate of the
    nearest one counts.
    """
    file = data_file("acceptance.yaml", "curves")
    for name in file.names:
        entry = file.entry(name)
        if entry["method"] != speculative.method or model.name not in entry["models"]:
            continue
        drafts = speculative.num_speculative_tokens
        published = {int(count): float(value) for count, value in entry["lengths"].items()}
        counts = sorted(published)
        at = min(max(drafts, counts[0]), counts[-1])
        below, above = max(c for c in counts if c <= at), min(c for c in counts if c >= at)
        share = (at - below) / (above - below) if above > below else 0.0
        length = published[below] + share * (published[above] - published[below])
        source = f"published for {entry['workload']}: {entry['source']}"
        return replace(speculative, acceptance_rate=rate_of_length(length, at), acceptance_source=source)
    return speculative
