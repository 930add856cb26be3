"""Scripted replies: rules in a file say which request gets which reply."""
