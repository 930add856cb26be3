"""The fake cluster and its HTTP face."""
