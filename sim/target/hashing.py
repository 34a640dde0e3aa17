"""Hash and checksum algorithms of BMv2 (src/bm_sim/calculations.cpp describes each), over bytes of `out`.

CRC parameters: CRC-16/ARC, CRC-32 (IEEE 802.3) and CRC-16/CCITT-FALSE; csum16 is RFC 1071.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from switchreduce.sim.target.intrinsics import U64, any8


def _reflected_table(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ polynomial if byte & 1 else byte >> 1
        table.append(byte)
    return np.array(table, dtype=np.uint64)


def _table(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    table = []
    for byte in range(256):
        value = byte << 8
        for _ in range(8):
            value = ((value << 1) ^ polynomial) & 0xFFFF if value & 0x8000 else value << 1
        table.append(value)
    return np.array(table, dtype=np.uint64)


_CRC16 = _reflected_table(0xA001)
_CRC32 = _reflected_table(0xEDB88320)
_CCITT = _table(0x1021)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def crc16(out, start, n):  # type: ignore[no-untyped-def]
    value = U64(0)
    for i in range(start, start + n):
        value = _CRC16[(value ^ any8(out, i)) & U64(0xFF)] ^ (value >> U64(8))
    return value


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def crc32(out, start, n):  # type: ignore[no-untyped-def]
    value = U64(0xFFFFFFFF)
    for i in range(start, start + n):
        value = _CRC32[(value ^ any8(out, i)) & U64(0xFF)] ^ (value >> U64(8))
    return value ^ U64(0xFFFFFFFF)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def crcCCITT(out, start, n):  # type: ignore[no-untyped-def]
    value = U64(0xFFFF)
    for i in range(start, start + n):
        value = _CCITT[any8(out, i) ^ (value >> U64(8))] ^ ((value << U64(8)) & U64(0xFFFF))
    return value


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def csum16(out, start, n):  # type: ignore[no-untyped-def]
    total = U64(0)
    for i in range(n):
        total += any8(out, start + i) << U64(0 if i & 1 else 8)
    return fold(total)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def fold(total):  # type: ignore[no-untyped-def]
    """Ones' complement of the ones' complement sum whose 16-bit words add up to `total`."""
    while total > U64(0xFFFF):
        total = (total & U64(0xFFFF)) + (total >> U64(16))
    return total ^ U64(0xFFFF)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def halves(value):  # type: ignore[no-untyped-def]
    """A 64-bit word's contribution to a csum16 total, small enough to add up 2**29 of them."""
    return (value & U64(0xFFFFFFFF)) + (value >> U64(32))


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def identity(out, start, n):  # type: ignore[no-untyped-def]
    value = U64(0)
    for i in range(start, start + min(n, 8)):
        value = (value << U64(8)) | any8(out, i)
    return value


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _xor(out, start, n, size):  # type: ignore[no-untyped-def]
    value = U64(0)
    for i in range(n):
        value ^= any8(out, start + i) << U64(8 * (size - 1 - i % size))
    return value


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def xor16(out, start, n):  # type: ignore[no-untyped-def]
    return _xor(out, start, n, 2)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def xor32(out, start, n):  # type: ignore[no-untyped-def]
    return _xor(out, start, n, 4)


ALGORITHMS = {
    "crc16": "crc16",
    "crc16_custom": "crc16",  # the default parameters; nothing here changes them
    "crc32": "crc32",
    "crc32_custom": "crc32",
    "crcCCITT": "crcCCITT",
    "csum16": "csum16",
    "cksum16": "csum16",
    "identity": "identity",
    "xor16": "xor16",
    "xor32": "xor32",
}
