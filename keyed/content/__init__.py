"""What a key group holds: addresses, entries and rows of tables, blocks of changes, and their hash."""
