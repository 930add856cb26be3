"""The Anthropic Messages API, translated to the path of chat completions."""
