"""The cluster as a pure state machine: routers, instances, schedulers and KV caches."""
