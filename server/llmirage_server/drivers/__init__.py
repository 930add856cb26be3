"""What gives the cluster its time: the wall clock, or virtual time."""
