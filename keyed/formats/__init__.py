"""Columns and bytes: types of SQL columns, records in the formats of topics, and schemas.

For the packages of `keyed` that read or write records: a batch of records becomes the declared columns with the reasons
of its bad rows, columns become records, schemas become columns, and columns become schemas.
"""
