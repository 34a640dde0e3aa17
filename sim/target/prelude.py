"""Functions that generated code calls, in the subset of Python that `native.py` compiles.

Memory is passed as addresses, accessed by `intrinsics.py`. Indices are int64, values uint64. This file
is read, never imported: what it calls has no definition in Python.
"""

# ruff: noqa: F821
# mypy: ignore-errors


def in_bits(inp, end, bit, width):
    """`width` <= 64 bits of a packet from bit number `bit`; bits at byte `end` and behind read as zero."""
    value = U(0)
    for i in range(bit >> 3, (bit + width + 7) >> 3):
        byte = in8(inp, i) if i < end else U(0)
        left = (i << 3) - bit  # where this byte's first bit stands in the result, counted from its top
        shift = width - left - 8
        if shift >= 64 or shift <= -8:
            continue
        value |= (byte << U(shift)) if shift >= 0 else (byte >> U(-shift))
    return value if width >= 64 else value & ((U(1) << U(width)) - U(1))


def out_bits(out, bit, width, value):
    """Writes `width` <= 64 bits at bit number `bit`; bits of the last byte behind them become zero."""
    done = 0
    while done < width:
        at = bit + done
        room = 8 - (at & 7)
        take = min(room, width - done)
        piece = (value >> U(width - done - take)) & ((U(1) << U(take)) - U(1))
        kept = U(0)
        if at & 7:
            kept = any8(out, at >> 3) & (U(0xFF) << U(room))
        out8(out, at >> 3, kept | (piece << U(room - take)))
        done += take


def shl(value, amount):
    return value << amount if amount < U(64) else U(0)


def shr(value, amount):
    return value >> amount if amount < U(64) else U(0)


def sar(value, amount):
    """Arithmetic shift of a 64-bit two's complement value."""
    steps = amount if amount < U(63) else U(63)
    return U(int64(value) >> int64(steps))


def sext(value, width):
    """The two's complement value of the low `width` bits, 1 <= width <= 64."""
    top = U(1) << U(width - 1)
    low = value & (top | (top - U(1)))
    return (low ^ top) - top


def usat(value, width):
    """A signed 64-bit value cut to 0 .. 2**width - 1, width <= 62."""
    v, most = int64(value), int64((1 << width) - 1)
    return U(0) if v < 0 else U(most if v > most else v)


def ssat(value, width):
    """A signed 64-bit value cut to the range of a `width`-bit two's complement number, width <= 62."""
    v, most = int64(value), int64((1 << (width - 1)) - 1)
    least = -most - 1
    return U(least if v < least else (most if v > most else v))


def div(a, b):
    """BMv2 aborts on a division by zero; here it yields zero."""
    return a // b if b != U(0) else U(0)


def rem(a, b):
    return a % b if b != U(0) else U(0)


# ------------------------------------------------------------------------------- integers of several words
# at phv[a] .. phv[a + n - 1], most significant word first; two's complement where a sign matters


def wide_extend(phv, a, m, to, n, fill):
    """Copies m words to n words: the low ones where n < m, else with `fill` (0 or all ones) in front."""
    for i in range(n):
        k = i - (n - m)
        put(phv, to + i, get(phv, a + k) if k >= 0 else fill)


def wide_equal(phv, a, b, n):
    different = U(0)
    for i in range(n):
        different |= get(phv, a + i) ^ get(phv, b + i)
    return different == U(0)


def wide_less(phv, a, b, n):
    """Signed comparison."""
    top = U(1) << U(63)
    x, y = get(phv, a) ^ top, get(phv, b) ^ top
    if x != y:
        return x < y
    for i in range(1, n):
        x, y = get(phv, a + i), get(phv, b + i)
        if x != y:
            return x < y
    return False


def wide_shl(phv, a, n, amount, to):
    words, bits = int64(amount >> U(6)), amount & U(63)
    if amount >= U(64 * n):
        words = n
    for i in range(n):
        k = i + words
        high = get(phv, a + k) if k < n else U(0)
        low = get(phv, a + k + 1) if k + 1 < n else U(0)
        put(phv, to + i, high if bits == U(0) else (high << bits) | (low >> (U(64) - bits)))


def wide_shr(phv, a, n, amount, fill, to):
    """Shift to the right with `fill` (0 or all ones) moving in."""
    words, bits = int64(amount >> U(6)), amount & U(63)
    if amount >= U(64 * n):
        words = n
    for i in range(n - 1, -1, -1):
        k = i - words
        low = get(phv, a + k) if k >= 0 else fill
        high = get(phv, a + k - 1) if k >= 1 else fill
        put(phv, to + i, low if bits == U(0) else (low >> bits) | (high << (U(64) - bits)))


def wide_mul(phv, a, b, n, to):
    """Product modulo 2**(64 n), in halves of 32 bits."""
    half = U(0xFFFFFFFF)
    for i in range(n):
        put(phv, to + i, U(0))
    for i in range(2 * n):
        x = (get(phv, a + n - 1 - (i >> 1)) >> U(32 * (i & 1))) & half
        carry = U(0)
        for j in range(2 * n - i):
            y = (get(phv, b + n - 1 - (j >> 1)) >> U(32 * (j & 1))) & half
            k = i + j
            word, shift = to + n - 1 - (k >> 1), U(32 * (k & 1))
            old = get(phv, word)
            total = ((old >> shift) & half) + x * y + carry
            carry = total >> U(32)
            put(phv, word, (old & ~(half << shift)) | ((total & half) << shift))


def cell(index, size):
    """An array index as int64; `size`, a cell that nothing depends on, for every index out of range."""
    return int64(index) if index < U(size) else int64(size)


def saturated(phv, a, n):
    """An unsigned number of n words as one word, all ones where it does not fit."""
    for i in range(n - 1):
        if get(phv, a + i) != U(0):
            return ~U(0)
    return get(phv, a + n - 1)


def count(mem, at, length):
    poke(mem, at, peek(mem, at) + U(1))
    poke(mem, at + 1, peek(mem, at + 1) + length)


def random_word(mem, at):
    """The next word of a splitmix64 sequence (Steele et al., OOPSLA 2014)."""
    state = peek(mem, at) + U(0x9E3779B97F4A7C15)
    poke(mem, at, state)
    state = (state ^ (state >> U(30))) * U(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> U(27))) * U(0x94D049BB133111EB)
    return state ^ (state >> U(31))


def copy_bytes(inp, start, out, to, n):
    for i in range(n):
        out8(out, to + i, in8(inp, start + i))


def payload_sum(inp, start, end, odd):
    """The csum16 total of a payload that follows `odd` (0 or 1) bytes of a 16-bit word."""
    total = U(0)
    i = start
    if odd and i < end:
        total += in8(inp, i)
        i += 1
    while i + 8 <= end:
        word = in64(inp, i)
        total += (word & U(0xFFFFFFFF)) + (word >> U(32))
        i += 8
    high = True
    while i < end:
        total += in8(inp, i) << U(8 if high else 0)
        high = not high
        i += 1
    return total


def clear(mem, at, n):
    for i in range(n):
        poke(mem, at + i, U(0))


# ------------------------------------------------------------------------------- hashes of bytes of `out`
# algorithms of BMv2, described in hashing.py, which has the tables


def crc16(out, start, n):
    value = U(0)
    for i in range(start, start + n):
        value = CRC16[(value ^ any8(out, i)) & U(0xFF)] ^ (value >> U(8))
    return value


def crc32(out, start, n):
    value = U(0xFFFFFFFF)
    for i in range(start, start + n):
        value = CRC32[(value ^ any8(out, i)) & U(0xFF)] ^ (value >> U(8))
    return value ^ U(0xFFFFFFFF)


def crcCCITT(out, start, n):
    value = U(0xFFFF)
    for i in range(start, start + n):
        value = CCITT[any8(out, i) ^ (value >> U(8))] ^ ((value << U(8)) & U(0xFFFF))
    return value


def csum16(out, start, n):
    total = U(0)
    for i in range(n):
        total += any8(out, start + i) << U(0 if i & 1 else 8)
    return fold(total)


def fold(total):
    """Ones' complement of the ones' complement sum whose 16-bit words add up to `total`."""
    while total > U(0xFFFF):
        total = (total & U(0xFFFF)) + (total >> U(16))
    return total ^ U(0xFFFF)


def halves(value):
    """A 64-bit word's contribution to a csum16 total, small enough to add up 2**29 of them."""
    return (value & U(0xFFFFFFFF)) + (value >> U(32))


def identity(out, start, n):
    value = U(0)
    for i in range(start, start + min(n, 8)):
        value = (value << U(8)) | any8(out, i)
    return value


def _xor(out, start, n, size):
    value = U(0)
    for i in range(n):
        value ^= any8(out, start + i) << U(8 * (size - 1 - i % size))
    return value


def xor16(out, start, n):
    return _xor(out, start, n, 2)


def xor32(out, start, n):
    return _xor(out, start, n, 4)
