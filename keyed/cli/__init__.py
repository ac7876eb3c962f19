"""The command line: ``python -m keyed.cli COMMAND``.

A command is a module of this package with ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``, which
returns the exit status and prints what it did; it is listed in `keyed.cli.main`.
"""
