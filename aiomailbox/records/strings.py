"""Strings as Flink writes them: UTF-16 code units in seven-bit groups.

Theory of operation: a string is its length plus one, then each of its UTF-16 code
units, all as varints: seven bits a byte, the least significant first, 0x80 set on all
but the last. Zero stands for no string. So ASCII text is its own encoding, which is
what the fast paths live on.
"""

from __future__ import annotations

import struct
from typing import Final

from aiomailbox.errors import CorruptStreamError, InvalidArgumentError
from aiomailbox.records.byte_reader import ByteReader

__all__ = [
    "read_java_utf",
    "read_string",
    "read_varint",
    "write_java_utf",
    "write_string",
    "write_varint",
]

_VARINT_BYTES_MAX: Final = 5
_VARINT_MAX: Final = 2**32 - 1
_UNIT_MAX: Final = 0xFFFF
_JAVA_UTF_BYTES_MAX: Final = 0xFFFF


def write_varint(value: int, output: bytearray) -> None:
    """Append a number of 0 to 2**32 - 1, seven bits a byte.

    Example:
        >>> output = bytearray()
        >>> write_varint(300, output)
        >>> output.hex()
        'ac02'
    """
    if not 0 <= value <= _VARINT_MAX:
        raise InvalidArgumentError("value", f"{value} is not within 0 .. {_VARINT_MAX}")
    while value >= 0x80:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def read_varint(source: ByteReader) -> int:
    """Read what `write_varint` wrote.

    Raises:
        CorruptStreamError: If it does not end, or exceeds 32 bits.
    """
    value = 0
    for group in range(_VARINT_BYTES_MAX):
        byte = source.read_byte()
        value |= (byte & 0x7F) << (7 * group)
        if byte >= 0:
            if value > _VARINT_MAX:
                break
            return value
    raise CorruptStreamError("a number of variable length exceeds 32 bits")


def write_string(text: str | None, output: bytearray) -> None:
    """Append a string, or None, in Flink's encoding; lone surrogates are kept.

    Example:
        >>> output = bytearray()
        >>> write_string("hé", output)
        >>> output.hex()
        '0368e901'
    """
    if text is None:
        output.append(0)
        return
    if text.isascii():
        write_varint(len(text) + 1, output)
        output += text.encode("ascii")
        return
    units = _code_units(text)
    write_varint(len(units) + 1, output)
    append = output.append
    for unit in units:
        while unit >= 0x80:
            append(unit & 0x7F | 0x80)
            unit >>= 7
        append(unit)


def read_string(source: ByteReader) -> str | None:
    """Read what `write_string` wrote.

    Raises:
        CorruptStreamError: If the bytes end, or a code unit exceeds 16 bits.
    """
    length = read_varint(source) - 1
    if length < 0:
        return None
    # Every code unit has a byte at least: nothing is made for a length that lies.
    ascii_bytes = bytes(source.peek(length))
    if ascii_bytes.isascii():
        source.take(length)
        return ascii_bytes.decode("ascii")
    units = [_read_unit(source) for _ in range(length)]
    encoded = struct.pack(f">{length}H", *units)
    return encoded.decode("utf-16-be", "surrogatepass")


def write_java_utf(text: str, output: bytearray) -> None:
    """Append a short string in Java's modified UTF-8, after its length in 16 bits.

    Raises:
        InvalidArgumentError: If it exceeds 65,535 bytes.
    """
    encoded = bytearray()
    for unit in _code_units(text):
        if unit:
            encoded += chr(unit).encode("utf-8", "surrogatepass")
        else:
            encoded += b"\xc0\x80"
    if len(encoded) > _JAVA_UTF_BYTES_MAX:
        raise InvalidArgumentError(
            "text", f"{len(encoded)} bytes exceed the {_JAVA_UTF_BYTES_MAX} that fit"
        )
    output += len(encoded).to_bytes(2, "big") + encoded


def read_java_utf(source: ByteReader) -> str:
    """Read what `write_java_utf` wrote.

    Raises:
        CorruptStreamError: If it is not that encoding.
    """
    encoded = bytes(source.take(source.read_short() & _UNIT_MAX))
    try:
        text = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CorruptStreamError(f"a name is not modified UTF-8: {error}") from error
    # Astral characters travel as two surrogates: put the pairs together.
    units = text.encode("utf-16-be", "surrogatepass")
    return units.decode("utf-16-be", "surrogatepass")


def _code_units(text: str) -> tuple[int, ...]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(encoded) // 2}H", encoded)


def _read_unit(source: ByteReader) -> int:
    unit = read_varint(source)
    if unit > _UNIT_MAX:
        raise CorruptStreamError(f"{unit} is not a UTF-16 code unit")
    return unit
