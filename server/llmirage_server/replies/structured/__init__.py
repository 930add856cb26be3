"""Replies that obey a schema: JSON values, and text that matches a pattern."""
