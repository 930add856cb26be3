"""What server and client must agree on: tokens, synthetic text, wire types, time, statistics."""
