"""Chat formats, one family a file."""
