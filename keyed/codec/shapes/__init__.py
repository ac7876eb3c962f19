"""Shapes: what declared types demand of values, checked before a value is encoded.

msgspec checks when it decodes. A value of another type would be encoded as it is, come back changed (a list declared
as a tuple) or, worse, could not be decoded any more (a bool declared as an int). A `Shape` finds it before a byte is
written, by exact classes: a subclass (``numpy.float64``, ``IntEnum``, ``OrderedDict``) would come back as its base.
"""

from keyed.codec.shapes.classes import ClassNode, class_of, is_frozen, values_getter
from keyed.codec.shapes.shape import Shape
from keyed.codec.shapes.shape_builder import shape_of

__all__ = ["ClassNode", "Shape", "class_of", "is_frozen", "shape_of", "values_getter"]
