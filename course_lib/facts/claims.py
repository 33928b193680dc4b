"""Sentences that circulate about large-scale training and are wrong, each beside what is right and how it went wrong.

They are the raw material of exercises: a number that somebody wrote down with confidence is worth recomputing. The
tests recompute the ones of chapter 1.
"""

from dataclasses import dataclass

from course_lib.facts.fact import find


@dataclass(frozen=True)
class Claim:
    """`said`: the claim in our words, with its numbers. `chapter`: where the course recomputes it."""

    name: str
    chapter: int
    said: str
    right: str
    how: str
    source: str
    date: str

    def __post_init__(self) -> None:
        for field in ("name", "said", "right", "how", "source", "date"):
            if not getattr(self, field):
                raise ValueError(f"a claim without {field}: expected all of them")


CLAIMS: tuple[Claim, ...] = (
    Claim("a million seconds", 1,
          "3.14e23 FLOPs at 312 TFLOP/s take one A100 1,006,410 seconds: 355 days at 40 %, and 8.3 hours on 1024 of "
          "them",
          "1.0064e9 seconds, which is 31.9 years; 79.7 years at 40 %; 28.4 days on 1024 of them",
          "three decimal places were lost; 355 is a published number of YEARS, for a V100 at 28 TFLOP/s; and 8.3 "
          "hours are "
          "355 days / 1024",
          "Brown et al. 2020, table D.1; Li, Lambda 2020", "2020"),
    Claim("GPT-3 is 350 GB", 1,
          "GPT-3 needs 350 GB of memory",
          "350 GB are its weights in 16 bits; to train it with Adam in mixed precision takes 16 bytes a parameter, "
          "2.8 TB, "
          "before activations",
          "weights were taken for everything: gradients and the optimiser's state hold seven times as much",
          "Rajbhandari et al., ZeRO, section 3.1", "2020"),
    Claim("A100 at 2.6 %", 1,
          "an A100 holds 2.6 % of GPT-3, because 80 GB are 2.6 % of 3 TB",
          "2.9 % of 2.8 TB without activations; 2.6 % with some 200 GB of them, which depend on the batch",
          "nothing is wrong but the certainty: activations were put in as a constant", "Rajbhandari et al., ZeRO",
          "2020"),
    Claim("7B in 28, 14 and 7 GB", 6,
          "a 7B model takes 28 GB on one device, 14 GB with ZeRO-2 and 7 GB with ZeRO-3",
          "28 GB are its weights in fp32; trained in mixed precision it takes 112 GB, and on 8 devices 38.5, 26.25 "
          "and 14 GB "
          "with ZeRO-1, -2 and -3",
          "weights alone were counted, and the number of devices was left out", "Rajbhandari et al., ZeRO, table 1",
          "2020"),
    Claim("good MFU", 1,
          "a good MFU is 40 to 60 %: Megatron reached 52 %",
          "Megatron's 52 % count FLOPs that were done twice to save memory: HFU. Its MFU is 39 to 40 %",
          "two fractions with the same denominator were called by one name",
          "Narayanan et al. 2021 (SC'21), Chowdhery et al. 2022 (PaLM), appendix B", "2022"),
    Claim("10,000 A100", 1,
          "GPT-3 was trained on about 10,000 A100, 64 x 8 x 16 of them",
          "it was trained on V100; 1024 A100 for 34 days is a calculation of the Megatron paper for the same model",
          "a cluster of 10,000 V100, a later paper's A100 and an illustration of three dimensions were added up",
          "Brown et al. 2020, section 2.3; Narayanan et al. 2021", "2021"),
    Claim("100 cards for 10,000 dollars", 1,
          "100 A100 for a month cost about 10,000 dollars in electricity",
          "the cards alone about 2,300 dollars; whole servers, cooled in an average data centre, about 7,500 "
          "dollars, at 0.0806 "
          "dollars a kWh",
          "true to the order of magnitude, if the whole server and its cooling are counted, which 300-400 W a card "
          "do not",
          "EIA 2024; DGX A100 data sheet; Uptime Institute 2023", "2024"),
    Claim("GPT-3 for millions", 1,
          "training GPT-3 cost 4 to 12 million dollars",
          "4.6 million are 355 years of one V100 at 1.48 dollars an hour; on 1024 A100 at 40 % of the peak and list "
          "prices of 2026 it is 1.0 to 2.4 million",
          "an estimate at one price of 2020 and a press figure without arithmetic became the two ends of a range",
          "Li, Lambda 2020", "2020"),
    Claim("inference MFU", 1,
          "inference reaches an MFU of 60 to 80 %",
          "one row of a product with 16-bit weights does one FLOP a byte: at most 0.3 % of an H100's peak; some 300 "
          "rows at a time reach it",
          "large batches, or the prompt, were taken for writing a text token by token",
          "Williams, Waterman and Patterson 2009 (roofline)", "2009"),
    Claim("strong and weak efficiency", 1,
          "strong scaling has an efficiency of 70 to 90 %, weak scaling one of 85 to 95 %",
          "it is what T1/n + alpha + beta M makes of the step, the message and the wire: from under 10 to over 99 % on "
          "2 to 16 devices",
          "numbers without a source, and without the number of devices", "arithmetic", "2026"),
    Claim("all-reduce is O(n log p)", 2,
          "an all-reduce of n bytes over p ranks takes O(n log p)",
          "a tree does; a ring takes 2(p-1) alpha + 2(p-1)/p n beta, whose bytes do not grow with p",
          "one algorithm was taken for the operation", "Thakur, Rabenseifner and Gropp 2005", "2005"),
    Claim("all-reduce of ranks", 2,
          "an all-reduce of [rank] over four ranks gives 6 in the code and 10 in the picture beside it",
          "ranks 0 to 3 add up to 6", "the picture counts from 1", "arithmetic", "2026"),
    Claim("NVLink 600 GB/s", 2,
          "NVLink of an A100 carries 600 GB/s",
          "300 GB/s in each direction; all-reduce on 8 of them reached 235 GB/s of bus bandwidth",
          "both directions were added", "NVIDIA A100 whitepaper; Bekman", "2020"),
    Claim("HDR beta", 2,
          "the beta of InfiniBand HDR is 1/200 Gbit/s",
          "1/25e9 seconds a byte", "bits were taken for bytes: 8 times too small", "InfiniBand Trade Association",
          "2018"),
    Claim("bubble (p-1)/m", 4,
          "a pipeline of p stages and m micro-batches idles (p-1)/m of the time",
          "(p-1)/(m+p-1) of the time; (p-1)/m is the idle time over the ideal time", "two denominators",
          "Huang et al. 2019 (GPipe); Narayanan et al. 2021", "2021"),
    Claim("a pipeline combines", 4,
          "pipeline parallelism combines data and model parallelism",
          "it is model parallelism between layers, with micro-batches to keep the stages busy",
          "micro-batches look like data parallelism, but no two devices hold the same layer", "Huang et al. 2019",
          "2019"),
    Claim("ZeRO stage 2", 6,
          "in ZeRO stage 2 each student keeps most chapters of the book",
          "stage 2 keeps the whole book (all parameters) and shares out the notes (gradients and optimiser state)",
          "the picture of stage 3 was thinned", "Rajbhandari et al., ZeRO", "2020"),
    Claim("Llama 3 dp 4", 7,
          "Llama 3 405B trained on rows of 131,072 tokens on 16,384 GPUs, 8 x 16 x 16 x 4 of them",
          "8 x 16 x 16 x 8 (tensor, context, pipeline, data) are 16,384; with 4 there would be 8,192",
          "a misprint in the last column of table 4", "Llama team 2024, table 4, third row", "2024"),
    Claim("faulty GPUs 30.1 %", 9,
          "in the pre-training of Llama 3 405B a faulty GPU was behind 148 of 419 unexpected interruptions, 30.1 %, "
          "and GPUs behind 58.7 % altogether",
          "148 of 419 are 35.3 %; the table's counts add up to 419 with 148, and to 268 for GPUs: 64.0 %",
          "the percentages were made with another count in the first row, 126 say; everybody quotes both",
          "Llama team 2024, section 3.3.4 and table 5", "2024"),
    Claim("speed-ups by library", 3,
          "8 GPUs give 5.5 times the speed with DP, 7.2 with DDP and 7.5 with FSDP",
          "that depends on the model, the batch and the wires; FSDP sends 1.5 times what DDP sends",
          "an illustration without a source; measure, or derive it from alpha-beta",
          "Rajbhandari et al., ZeRO, section 7",
          "2020"),
)


def claim(name: str) -> Claim:
    """The one of this name. ValueError, with all names, where there is none."""
    return find("claim", name, CLAIMS)
