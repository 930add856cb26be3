"""Shapes of the OpenAI API that both sides use."""
