"""Recorded exchanges: their files, what may stand in them, which one answers a request, and converters from other tools."""
