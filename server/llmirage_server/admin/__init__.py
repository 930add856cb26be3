"""What tests and people ask the server itself, under /llmirage/."""
