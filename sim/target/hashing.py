"""Hash and checksum algorithms of BMv2 (src/bm_sim/calculations.cpp describes each), over bytes.

CRC parameters: CRC-16/ARC, CRC-32 (IEEE 802.3) and CRC-16/CCITT-FALSE; csum16 is RFC 1071.
"""

from __future__ import annotations


def _reflected_table(polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ polynomial if byte & 1 else byte >> 1
        table.append(byte)
    return table


def _table(polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        value = byte << 8
        for _ in range(8):
            value = ((value << 1) ^ polynomial) & 0xFFFF if value & 0x8000 else value << 1
        table.append(value)
    return table


# what prelude.py's functions look up
TABLES = {
    "CRC16": _reflected_table(0xA001),
    "CRC32": _reflected_table(0xEDB88320),
    "CCITT": _table(0x1021),
}

# BMv2's name -> that of the function in prelude.py

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
