"""Several processes of HTTP before one simulated cluster: the engine process, its workers, and what they tell each other."""
