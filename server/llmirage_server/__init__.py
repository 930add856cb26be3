"""The simulated cluster and its HTTP API."""

from llmirage_shared.compiled import complaint

if said := complaint():  # nobody simulates with what was compiled of other sources, from Python either
    raise ImportError(said)
