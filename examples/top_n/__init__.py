"""The main job: the ``n`` most frequent items of each time window, as two keyed functions in one streaming query.

Run it with ``python -m examples.top_n --help``. `functions` has the keyed functions, and `job` builds the
chain of streams. `datasets`, `arrivals` and `workspace` prepare the data and make reruns safe; `report` prints.
"""
