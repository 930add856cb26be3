"""The OpenAI API on the wire, as both sides use it."""
