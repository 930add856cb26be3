"""WHAT is said: finished plans of token ids and text pieces."""
