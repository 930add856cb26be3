"""The Responses API: a translation onto the path that chat completions take, with items and events of its own."""
