"""The Responses API, translated to the path of chat completions, with its own items and events."""
