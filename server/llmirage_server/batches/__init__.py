"""Files of requests, run when no other request waits."""
