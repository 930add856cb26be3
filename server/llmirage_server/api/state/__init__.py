"""Objects that outlive a request: responses, conversations, stored completions. In memory, or in a SQLite file."""
