"""GPUs, models and engines: the package's data, and the user's own."""
