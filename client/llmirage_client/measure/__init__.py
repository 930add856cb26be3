"""One Record per request; metrics computed from records alone."""
