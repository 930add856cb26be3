"""How exactly `llmirage serve --speed N` keeps the times of its cluster."""
