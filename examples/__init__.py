"""Jobs that show how keyed is used; each is run with `python -m examples.NAME`."""
