"""KV memory: blocks, the radix tree of cached prefixes, offload tiers, transfer between instances."""
