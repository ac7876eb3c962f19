"""Shapes: checks of values against their declared types, before a value is encoded.

msgspec checks when it decodes. Without the check, a value of another type would come back changed (a list declared as a
tuple) or could not be decoded (a bool declared as an int). A `Shape` checks exact classes: a subclass
(``numpy.float64``, ``IntEnum``, ``OrderedDict``) would come back as its base.
"""
