"""The command line: ``keyed COMMAND``.

A command is a `keyed.cli.command.Command`, one of the ``COMMANDS`` of a module of this package.
"""
