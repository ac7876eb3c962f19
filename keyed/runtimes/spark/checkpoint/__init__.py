"""The checkpoint of a query: its start, its content and its position."""
