"""The cost of keyed functions: ``make bench``, or ``python -m tests.benchmarks --help``.

`events` makes the input; `variants` lists what is measured; `work` runs one variant in a process of its own; `meter`
watches that process and all below it from outside; `report` compares the figures with the goals.
"""
