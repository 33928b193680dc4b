"""What papers report of sequence and context parallelism, and of recomputation, in their abstracts and tables."""

from course_lib.facts.fact import Fact

KORTHIKANTI = ("Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, abstract", "2022-05")
BRANDON = ("Brandon et al., Striped Attention, abstract", "2023-11")
JACOBS = ("Jacobs et al., DeepSpeed Ulysses, abstract", "2023-09")
# The table itself was not at hand. Its three rows, 430, 400 and 380, were read in November 2026 as G. Lockwood copied
# them from a talk of P. Balaji (Meta) at SC'24: https://glennklockwood.com/garden/llama-3.1
LLAMA_SHORT = ("Llama team, The Llama 3 Herd of Models, table 4, second row", "2024")
LLAMA_LONG = ("Llama team, The Llama 3 Herd of Models, table 4, third row", "2024")

LONG_ROWS: dict[str, Fact] = {
    "530B on 2240 A100, full recomputation": Fact(42.1, "% MFU", *KORTHIKANTI),
    "... sequence parallel and selective": Fact(54.2, "% MFU", *KORTHIKANTI),
    "... activation memory, before over after": Fact(5, "times", *KORTHIKANTI),
    "striped over contiguous ring, 256k tokens": Fact(1.45, "times the speed, at best", *BRANDON),
    "... 786k tokens on 16 TPU v4": Fact(1.65, "times the speed", *BRANDON),
    "Ulysses over what there was, rows 4 times longer": Fact(2.5, "times the speed", *JACOBS),
    "Llama 3 405B, 8,192 tokens on 16,384 H100": Fact(400, "TFLOP/s each", *LLAMA_SHORT),
    "Llama 3 405B, 131,072 tokens on 16,384 H100": Fact(380, "TFLOP/s each", *LLAMA_LONG),
}
