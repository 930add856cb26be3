"""The Anthropic Messages API: a translation onto the path that chat completions take."""
