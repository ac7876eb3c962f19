"""The checkpoint of a query: how it begins, what it holds, where it stands."""
