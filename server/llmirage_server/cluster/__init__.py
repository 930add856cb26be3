"""WHEN it is said: router, instances, scheduler, KV cache; a pure state machine."""
