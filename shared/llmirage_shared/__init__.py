"""The common ground of server and client: tokens, synthetic text, wire types, time, statistics."""
