"""Compilation of a chain of stages to one DataFrame.

- `build`: all of it. `inputs`: the columns of the sources. `serialization`: checks of what is sent to workers.
"""
