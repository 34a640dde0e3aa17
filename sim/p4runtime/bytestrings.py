"""P4Runtime byte strings: unsigned integers as big-endian bytes (P4Runtime 1.4, "Bytestrings").

The canonical form is the shortest string that holds the value (one zero byte for 0). Readers accept
any number of leading zero bytes; a value that needs more bits than the P4Info says is refused.
"""

from __future__ import annotations

from switchreduce.sim.p4runtime.status import invalid


def encode(value: int) -> bytes:
    """The canonical byte string of an unsigned integer."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """The value of ``data`` as a ``bit<width>``; ``what`` names it in the error.

    Raises RequestError(INVALID_ARGUMENT), the code that the specification asks for in match fields and
    action parameters and that BMv2 answers everywhere, when the string is empty or does not fit.
    """
    if not data:
        raise invalid(f"{what}: the byte string is empty")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise invalid(f"{what}: the value needs {value.bit_length()} bits, the field has {width}")
    return value
