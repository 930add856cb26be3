"""Model replicas: continuous batching step by step, or a steady batch by its sums."""
