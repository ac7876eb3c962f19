"""The main job: the ``n`` most frequent items of each time window, as two keyed functions in one streaming query.

Run it with ``python -m examples.top_n --help``. What to read: `functions` is the job itself, `job` builds the chain of
streams; `datasets`, `arrivals` and `workspace` bring the data and keep reruns safe, `report` prints.
"""
