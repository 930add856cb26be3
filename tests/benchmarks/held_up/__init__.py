"""Whether requests that ask for too much hold up the streams of others: `make held-up`."""
