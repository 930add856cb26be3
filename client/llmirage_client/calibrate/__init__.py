"""`llmirage calibrate`: an engine profile fitted to measured runs."""
