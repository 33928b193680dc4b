"""Remove from a PNG what differs between two runs that drew the same pixels."""

import struct

SIGNATURE = b"\x89PNG\r\n\x1a\n"
DROPPED = {b"tEXt", b"zTXt", b"iTXt", b"tIME", b"eXIf"}  # program and version, date, comments


def without_metadata(png: bytes) -> bytes:
    """The same picture without text, time and EXIF chunks (PNG specification, section 5.3: chunk layout).

    Raises ValueError when `png` does not start as a PNG does.
    """
    if not png.startswith(SIGNATURE):
        raise ValueError(f"expected a PNG, given bytes that start with {png[:8]!r}")
    kept, position = [SIGNATURE], len(SIGNATURE)
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        end = position + 4 + 4 + length + 4  # length, type, data, checksum
        if png[position + 4 : position + 8] not in DROPPED:
            kept.append(png[position:end])
        position = end
    return b"".join(kept)
