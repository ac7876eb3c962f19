"""Tables as keyed state: hashing, merging, the chunks of a stored table, and the changes of a batch.

Everything here is on Arrow tables and numpy arrays, without clocks and I/O; `keyed.engine` runs it and `keyed.stores`
keeps it. The modules import pyarrow and numpy, so they are imported where they are used.
"""
