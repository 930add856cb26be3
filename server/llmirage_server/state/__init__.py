"""Objects and files that outlive a request, in memory or in a SQLite file."""
