"""The simulated cluster and its HTTP API."""

from llmirage_shared.compiled import complaint

if said := complaint():  # modules compiled from other sources are refused, from Python too
    raise ImportError(said)
