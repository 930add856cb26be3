"""The server's commands: `serve` and `step`, their options and what they print."""
