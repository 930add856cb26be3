"""What the server measures of itself."""
