"""The way of a request that all endpoints share: prompt tokens, a planned reply, its tokens in time."""
