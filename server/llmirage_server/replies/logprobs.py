"""Log probabilities that belong together: as a model might have had them that chose just these tokens.

No model computed them. They depend on the token and its place alone, so the same reply has the same ones, streamed or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmirage_shared.synthetic_text import mix


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """logprob: of the chosen token, natural logarithm, at most 0. top: the likeliest tokens, best first: (id, logprob)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(token_id: int, position: int, vocab_size: int, top: int = 0) -> TokenLogprob:
    """Return the log probability of a token at a position of the reply, and those of the `top` likeliest (at most 20).

    The chosen token is the likeliest in most places, as under ordinary sampling; probabilities of one place never add up to
    more than 1.
    """
    bits = mix(token_id * 0x1_0000_0001 + position)
    uniform = ((bits >> 11) + 0.5) / 2.0**53
    chosen = max(1e-6, uniform ** (1 / 3))  # mostly near 1
    rest = 1.0 - chosen
    alternatives: list[tuple[int, float]] = []
    seen = {token_id}
    for _ in range(top + 1):
        bits = mix(bits)
        other = bits % vocab_size
        while other in seen:
            other = (other + 1) % vocab_size
        seen.add(other)
        share = rest * 0.5
        rest -= share
        alternatives.append((other, math.log(max(share, 1e-12))))
    ranked = sorted([(token_id, math.log(chosen)), *alternatives], key=lambda entry: -entry[1])[:top]
    if top and all(entry[0] != token_id for entry in ranked):
        ranked[-1] = (token_id, math.log(chosen))
    return TokenLogprob(token_id, _rounded(math.log(chosen)), tuple([(i, _rounded(logprob)) for i, logprob in ranked]))


def _rounded(logprob: float) -> float:
    return min(0.0, round(logprob, 6))
