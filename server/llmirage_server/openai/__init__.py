"""OpenAI's own endpoints: chat, completions, embeddings, moderations, responses."""
