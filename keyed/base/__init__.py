"""The lowest room: what all others need, and nothing that knows of keys, state or jobs.

- `arguments`: checks of arguments, durations and timestamps, values in messages and representations.
  `ids`: random identities. `extras`: optional packages.
- `schemas`: the columns of outputs, in any form they are declared in, and types as text.
- `sources`: the protocol of sources, and what a source may yield.
- `background`: threads beside the rows, their status, errors and end. `closing`: objects that are closed.
  `private_files`: files that others cannot read. `lease`: a lock on a file or folder. `scratch`: temporary folders.
"""
