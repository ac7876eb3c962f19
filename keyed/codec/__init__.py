"""Encodings of keys, values, records and schemas: data only, versioned, checked; stored code is never run.

- `keys`: keys as bytes in the order of the keys, prefix-free. `key_hash`: the hash that picks a key's group, in Spark
  and in Python. `map_keys`: keys of map states.
- `values`: values of declared types. `tagged`: values without one. `shapes`: the checks of a type's values.
  `fingerprints`: types as JSON. `refusals`: remedies for refused values. `snapshots`: immutable copies of values.
- `state_schema`: the states of an operator, and whether a changed program fits them.
- `frames`: kind, version, length and checksum around every persisted record. `arrow_streams`: tables as bytes.
"""
