"""How far the performance model and the engine are from measured silicon: the measurements behind docs/accuracy.md."""
