"""Serving engines, one class each: defaults by version and GPU, memory, launching, host time, hand-off."""
