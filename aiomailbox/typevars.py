"""The type variables; those of what users subclass and describe are Any if left out.

With a default, ``class Count(am.KeyedProcessFunction)`` is as good to a strict checker
as ``class Count(am.KeyedProcessFunction[str, Order, int])``: it just knows less.
"""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

# A record that goes in, and one that comes out; ``_contra`` and ``_co`` are for
# protocols, whose type variables say in which direction they go.
InT = TypeVar("InT", default=Any)
InT_contra = TypeVar("InT_contra", default=Any, contravariant=True)
OutT = TypeVar("OutT", default=Any)
OutT_co = TypeVar("OutT_co", default=Any, covariant=True)
ContextT = TypeVar("ContextT", default=Any)
OtherContextT = TypeVar("OtherContextT", default=Any)
WindowT = TypeVar("WindowT", default=Any)
WindowT_co = TypeVar("WindowT_co", default=Any, covariant=True)
# Records of the first and the second of two streams.
FirstT = TypeVar("FirstT", default=Any)
SecondT = TypeVar("SecondT", default=Any)
KeyT = TypeVar("KeyT", default=Any)
AccT = TypeVar("AccT", default=Any)
# What state holds, and the keys of a map in it.
ValueT = TypeVar("ValueT", default=Any)
MapKeyT = TypeVar("MapKeyT", default=Any)
DefaultT = TypeVar("DefaultT", default=Any)
# These are found by what a function is given, or a stream made of, and have no default.
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
K = TypeVar("K")
# Records of two streams that are joined.
A = TypeVar("A")
B = TypeVar("B")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
