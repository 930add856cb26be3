"""Session, Turn, Branch: the one in-memory form of every workload format."""
