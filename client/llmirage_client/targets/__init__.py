"""Where a turn goes: any HTTP endpoint."""
