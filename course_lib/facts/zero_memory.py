"""What ZeRO saves, as its paper prints it: table 1 of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", 2020.

GB (1e9 bytes) of model states on each device, for Adam in mixed precision, by (parameters, number of devices): stages
1, 2 and 3. The paper rounds some of its cells and cuts others off (4187.5 to 4187).
"""

PAPER_MODELS = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
PAPER_DEVICES = (1, 4, 16, 64, 256, 1024)
PAPER_TABLE_1: dict[tuple[str, int], tuple[float, float, float]] = {
    ("7.5B", 1): (120, 120, 120), ("7.5B", 4): (52.5, 41.3, 30), ("7.5B", 16): (35.6, 21.6, 7.5),
    ("7.5B", 64): (31.4, 16.6, 1.88), ("7.5B", 256): (30.4, 15.4, 0.47), ("7.5B", 1024): (30.1, 15.1, 0.12),
    ("128B", 1): (2048, 2048, 2048), ("128B", 4): (896, 704, 512), ("128B", 16): (608, 368, 128),
    ("128B", 64): (536, 284, 32), ("128B", 256): (518, 263, 8), ("128B", 1024): (513, 257, 2),
    ("1T", 1): (16000, 16000, 16000), ("1T", 4): (7000, 5500, 4000), ("1T", 16): (4750, 2875, 1000),
    ("1T", 64): (4187, 2218, 250), ("1T", 256): (4046, 2054, 62.5), ("1T", 1024): (4011, 2013, 15.6),
}
