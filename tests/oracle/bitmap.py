"""Filter bitmaps of extended queue units: which bits a group has, by the text of BloomFilter and of MurmurHash3."""

HASHES = 3
MASK = (1 << 64) - 1
C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & MASK


def _final(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def murmur3(text: bytes) -> int:
    """The first 64 bits of MurmurHash3_x64_128 with seed 0."""
    h1 = h2 = 0
    whole = len(text) // 16 * 16
    for at in range(0, whole, 16):
        k1 = int.from_bytes(text[at : at + 8], "little")
        k2 = int.from_bytes(text[at + 8 : at + 16], "little")
        h1 ^= _rotated(k1 * C1 & MASK, 31) * C2 & MASK
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 ^= _rotated(k2 * C2 & MASK, 33) * C1 & MASK
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & MASK
    tail = text[whole:]
    if len(tail) > 8:
        h2 ^= _rotated(int.from_bytes(tail[8:], "little") * C2 & MASK, 33) * C1 & MASK
    if tail:
        h1 ^= _rotated(int.from_bytes(tail[:8], "little") * C1 & MASK, 31) * C2 & MASK
    h1 ^= len(text)
    h2 ^= len(text)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    return _final(h1) + _final(h2) & MASK


def _as_int(value: int) -> int:
    """Java's int of it."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def positions(name: bytes, bits: int) -> list[int]:
    """BloomFilter.calcBitPositions."""
    hashed = murmur3(name)
    first, second = _as_int(hashed), _as_int(hashed >> 32)
    combined = [_as_int(first + number * second) for number in range(1, HASHES + 1)]
    return [(~one if one < 0 else one) % bits for one in combined]


def bitmap(names: list[bytes], bits: int) -> bytes:
    """A bitmap with the bits of all names (BitsArray)."""
    made = bytearray(bits // 8)
    for name in names:
        for position in positions(name, bits):
            made[position // 8] |= 1 << position % 8
    return bytes(made)
