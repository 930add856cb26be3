"""HOW LONG a step takes and what fits: catalogues, parallelism, roofline, memory."""
