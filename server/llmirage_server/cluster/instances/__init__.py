"""Model replicas: continuous batching step by step, or a steady batch fast-forwarded by its sums."""
