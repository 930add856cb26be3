"""One loader per workload format, a registry, auto-detection."""
