"""Traces: files of the requests that the server has served, in the formats that other tools replay and show."""
