"""A request: its ids as arrays and as the key of caches."""

import math

import numpy as np
import pytest

from llmirage_server.cluster.request import Request, token_bytes


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.interpreted
def test_a_request_of_a_key_is_the_same_as_one_of_arrays() -> None:
    of_arrays = Request(7, ids(1, 2, 3), ids(4, 5), "session", max_tokens=2)
    of_key = Request.of_key(7, token_bytes(ids(1, 2, 3, 4, 5)), 3, "session")
    for name in Request.__slots__:
        one, other = getattr(of_arrays, name), getattr(of_key, name)
        assert one == other or (math.isnan(one) and math.isnan(other)), name
    assert (of_key.prompt_tokens, of_key.output_tokens, of_key.max_tokens) == (3, 2, 2)


def test_prompt_and_output_are_read_only_views() -> None:
    request = Request(1, ids(1, 2, 3), ids(4, 5))
    assert (request.prompt.tolist(), request.output.tolist()) == ([1, 2, 3], [4, 5])
    assert request.prompt.dtype == request.output.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        request.prompt[0] = 9


def test_ids_of_other_widths_and_strides_become_the_same_key() -> None:
    wide = np.arange(10, dtype=np.int64)
    assert Request(1, wide[::2], wide[1::2]).key == token_bytes(ids(0, 2, 4, 6, 8, 1, 3, 5, 7, 9))  # type: ignore[arg-type]


def test_the_counts_outlive_the_ids() -> None:
    request = Request(1, ids(1, 2, 3), ids(4, 5))
    request.forget_tokens()
    assert (request.key, request.prompt_tokens, request.output_tokens) == (b"", 3, 2)


def test_requests_are_told_apart_by_identity() -> None:
    one, other = (Request(1, ids(1), ids(2)) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2
