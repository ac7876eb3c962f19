"""How keys, values, records and schemas become bytes: data only, versioned, checked; nothing here runs stored code.

- `keys`: keys as bytes in the order of the keys, prefix-free. `hashing`: the hash that picks a key's group, in Spark
  and in Python.
- `values`: values of declared types. `tagged`: values without one. `map_keys`: keys of map states. `shapes`: what a
  type demands of a value. `fingerprints`: types as JSON. `refusals`: what to do about values that are not taken.
- `schema`: the states of an operator, and whether a changed program fits them. `migration`: values given new fields.
  `stand_ins`: values read without the class that they were written with.
- `blocks`: changes of entries and tables as columns. `arrow_streams`: tables as bytes. `table_entries`: their rows as
  entries. `entry_hash`: the hash of what is live.
- `frames`: kind, version, length and checksum around every persisted record.
"""

from keyed.codec.frames import FRAME_OVERHEAD, frame, iter_frames, unframe
from keyed.codec.key_hash import group_of, key_hash, spark_hash_expression
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.map_keys import KeyCodec, map_key_codec
from keyed.codec.state_schema import StateSchema, check_compatible, describe_type
from keyed.codec.values import ValueCodec, value_codec

__all__ = [
    "FRAME_OVERHEAD",
    "KeyCodec",
    "StateSchema",
    "ValueCodec",
    "check_compatible",
    "decode_key",
    "decode_key_at",
    "describe_type",
    "encode_key",
    "frame",
    "group_of",
    "iter_frames",
    "key_hash",
    "map_key_codec",
    "spark_hash_expression",
    "unframe",
    "value_codec",
]
