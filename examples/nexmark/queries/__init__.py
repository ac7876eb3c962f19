"""The queries, a module for each family."""
