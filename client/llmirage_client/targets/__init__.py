"""Where a turn goes: any HTTP endpoint, and later the in-memory and direct doors."""
