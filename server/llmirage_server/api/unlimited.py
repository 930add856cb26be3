"""The rate limits that a server without limits reports."""

UNLIMITED = (  # as if this request were the only one
    (b"x-ratelimit-limit-requests", b"30000"),
    (b"x-ratelimit-limit-tokens", b"180000000"),
    (b"x-ratelimit-remaining-requests", b"29999"),
    (b"x-ratelimit-remaining-tokens", b"179999999"),
    (b"x-ratelimit-reset-requests", b"2ms"),
    (b"x-ratelimit-reset-tokens", b"0s"),
)
