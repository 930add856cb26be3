"""One module per endpoint: validate the body, build the prompt, ask for a reply, stream it."""
