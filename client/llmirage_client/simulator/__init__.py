"""The only room that knows the server: the cluster as a target, the whole API in process, replays of measured runs."""
