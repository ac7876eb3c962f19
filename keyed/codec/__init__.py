"""Encodings of keys, values, records and schemas: data only, versioned, checked; stored code is never run.

- `keys`: keys as bytes in the order of the keys, prefix-free. `key_hash`: the hash that picks a key's group, in Spark
  and in Python. `map_keys`: keys of map states.
- `values`: values of declared types. `tagged`: values without one. `shapes`: what a type demands of a value.
  `fingerprints`: types as JSON. `refusals`: what to do about values that are not taken. `snapshots`: values as they are
  at a moment. `glance`: many values at once that storing would not change.
- `state_schema`: the states of an operator, and whether a changed program fits them. `migration`: values given new
  fields. `stand_ins`: values read without the class that they were written with.
- `frames`: kind, version, length and checksum around every persisted record. `arrow_streams`: tables as bytes.
"""
