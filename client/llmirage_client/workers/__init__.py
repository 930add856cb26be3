"""One run spread over several processes, on this machine or on a Ray cluster."""
