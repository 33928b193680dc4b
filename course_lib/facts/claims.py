"""Sentences that circulate about large-scale training and are wrong, each beside what is right and how it went wrong.

They are the raw material of exercises: a number that somebody wrote down with confidence is worth recomputing. The
tests recompute the ones of chapter 1.
"""

from dataclasses import dataclass

from course_lib.facts.fact import find


@dataclass(frozen=True)
class Claim:
    """`said`: the claim in our words, with its numbers. `documents`: which of the five documents of docs/documents.md
    say it, counted from 1; none of them where it circulates elsewhere. `cell`: the section of a notebook that shows
    what is right, its number and heading; `shown`: words of that section, or of what its cells print.
    """

    name: str
    documents: tuple[int, ...]
    cell: str
    shown: str
    said: str
    right: str
    how: str
    source: str
    date: str

    def __post_init__(self) -> None:
        for field in ("name", "cell", "shown", "said", "right", "how", "source", "date"):
            if not getattr(self, field):
                raise ValueError(f"a claim without {field}: expected all of them")

    @property
    def chapter(self) -> int:
        """The chapter that shows what is right."""
        return int(self.cell.split(" ", 1)[0])


CLAIMS: tuple[Claim, ...] = (
    Claim("a million seconds", (3,), "01 Find the error", "28.4 days",
          "3.14e23 FLOPs at 312 TFLOP/s take one A100 1,006,410 seconds: 355 days at 40 %, and 8.3 hours on 1024 of "
          "them",
          "1.0064e9 seconds, which is 31.9 years; 79.7 years at 40 %; 28.4 days on 1024 of them",
          "three decimal places were lost; 355 is a published number of YEARS, for a V100 at 28 TFLOP/s; and 8.3 hours "
          "are 355 days / 1024", "Brown et al. 2020, table D.1; Li, Lambda 2020", "2020"),
    Claim("GPT-3 is 350 GB", (1,), "01 Numbers that circulate", "2,800 GB", "GPT-3 needs 350 GB of memory",
          "350 GB are its weights in 16 bits; to train it with Adam in mixed precision takes 16 bytes per parameter, "
          "2.8 TB, before activations",
          "weights were taken for everything: gradients and the optimiser's state hold seven times as much",
          "Rajbhandari et al., ZeRO, section 3.1", "2020"),
    Claim("A100 at 2.6 %", (3,), "01 Numbers that circulate", "2.9 %",
          "an A100 holds 2.6 % of GPT-3, because 80 GB are 2.6 % of 3 TB",
          "2.9 % of 2.8 TB without activations; 2.6 % with some 200 GB of them, which depend on the batch",
          "nothing is wrong but the certainty: activations were put in as a constant", "Rajbhandari et al., ZeRO",
          "2020"),
    Claim("7B in 28, 14 and 7 GB", (4,), "06 Numbers that circulate", "28 GB are its weights in float32",
          "a 7B model takes 28 GB on one device, 14 GB with ZeRO-2 and 7 GB with ZeRO-3",
          "28 GB are its weights in fp32; trained in mixed precision it takes 112 GB, and on 8 devices 38.5, 26.25 and "
          "14 GB with ZeRO-1, -2 and -3",
          "weights alone were counted, and the number of devices was left out", "Rajbhandari et al., ZeRO, table 1",
          "2020"),
    Claim("good MFU", (3,), "01 Where GPT-3's 34 days come from", "the MFU of that run is 39 %",
          "a good MFU is 40 to 60 %: Megatron reached 52 %",
          "Megatron's 52 % count FLOPs that were done twice to save memory: HFU. Its MFU is 39 to 40 %",
          "two fractions with the same denominator were called by one name",
          "Narayanan et al. 2021 (SC'21), Chowdhery et al. 2022 (PaLM), appendix B", "2022"),
    Claim("10,000 A100", (1, 2), "01 Numbers that circulate", "It was trained on V100",
          "GPT-3 was trained on about 10,000 A100, 64 x 8 x 16 of them",
          "it was trained on V100; 1024 A100 for 34 days is a calculation of the Megatron paper for the same model",
          "a cluster of 10,000 V100, a later paper's A100 and an illustration of three dimensions were added up",
          "Brown et al. 2020, section 2.3; Narayanan et al. 2021", "2021"),
    Claim("100 cards for 10,000 dollars", (2,), "01 The third wall: money", "7,450 USD",
          "100 A100 for a month cost about 10,000 dollars in electricity",
          "the cards alone about 2,300 dollars; whole servers, cooled in an average data centre, about 7,500 dollars, "
          "at 0.0806 dollars per kWh",
          "true to the order of magnitude, if the whole server and its cooling are counted, which 300-400 W per card "
          "do not", "EIA 2024; DGX A100 data sheet; Uptime Institute 2023", "2024"),
    Claim("GPT-3 for millions", (1,), "01 Numbers that circulate", "355 years of a V100 at 1.48 dollars",
          "training GPT-3 cost 4 to 12 million dollars",
          "4.6 million are 355 years of one V100 at 1.48 dollars per hour; on 1024 A100 at 40 % of the peak and list "
          "prices of 2026 it is 1.0 to 2.4 million",
          "an estimate at one price of 2020 and a press figure without arithmetic became the two ends of a range",
          "Li, Lambda 2020", "2020"),
    Claim("inference MFU", (3,), "01 Numbers that circulate", "less than 1 % of the peak",
          "inference reaches an MFU of 60 to 80 %",
          "one row of a product with 16-bit weights does one FLOP per byte: at most 0.3 % of an H100's peak; some 300 "
          "rows at a time reach it",
          "large batches, or the prompt, were taken for writing a text token by token",
          "Williams, Waterman and Patterson 2009 (roofline)", "2009"),
    Claim("strong and weak efficiency", (3,), "01 Numbers that circulate", "Strong scaling is 70 to 90 % efficient",
          "strong scaling has an efficiency of 70 to 90 %, weak scaling one of 85 to 95 %",
          "it is what T1/n + alpha + beta M makes of the step, the message and the wire: from under 10 to over 99 % on "
          "2 to 16 devices",
          "numbers without a source, and without the number of devices", "arithmetic", "2026"),
    Claim("all-reduce is O(n log p)", (3,), "02 Numbers that circulate", "This is the tree",
          "an all-reduce of n bytes over p ranks takes O(n log p)",
          "a tree does; a ring takes 2(p-1) alpha + 2(p-1)/p n beta, whose bytes do not grow with p",
          "one algorithm was taken for the operation", "Thakur, Rabenseifner and Gropp 2005", "2005"),
    Claim("all-reduce of ranks", (3,), "00 Sending a tensor", "[6, 6, 6, 6]",
          "an all-reduce of [rank] over four ranks gives 6 in the code and 10 in the picture beside it",
          "ranks 0 to 3 add up to 6", "the picture counts from 1", "arithmetic", "2026"),
    Claim("NVLink 600 GB/s", (1, 3), "02 Numbers that circulate", "300 GB/s", "NVLink of an A100 carries 600 GB/s",
          "300 GB/s in each direction; all-reduce on 8 of them reached 235 GB/s of bus bandwidth",
          "both directions were added", "NVIDIA A100 whitepaper; Bekman", "2020"),
    Claim("HDR beta", (3,), "02 Numbers that circulate", "1/25e9 seconds", "the beta of InfiniBand HDR is 1/200 Gbit/s",
          "1/25e9 seconds per byte", "bits were taken for bytes: 8 times too small", "InfiniBand Trade Association",
          "2018"),
    Claim("bubble (p-1)/m", (), "04 Numbers that circulate", "(p − 1)/(m + p − 1)",
          "a pipeline of p stages and m micro-batches idles (p-1)/m of the time",
          "(p-1)/(m+p-1) of the time; (p-1)/m is the idle time over the ideal time", "two denominators",
          "Huang et al. 2019 (GPipe); Narayanan et al. 2021", "2021"),
    Claim("a pipeline combines", (2,), "04 Numbers that circulate", "no two ranks hold the same layer",
          "pipeline parallelism combines data and model parallelism",
          "it is model parallelism between layers, with micro-batches to keep the stages busy",
          "micro-batches look like data parallelism, but no two devices hold the same layer", "Huang et al. 2019",
          "2019"),
    Claim("ZeRO stage 2", (1,), "06 Numbers that circulate", "Each keeps the whole book",
          "in ZeRO stage 2 each student keeps most chapters of the book",
          "stage 2 keeps the whole book (all parameters) and shares out the notes (gradients and optimiser state)",
          "the picture of stage 3 was thinned", "Rajbhandari et al., ZeRO", "2020"),
    Claim("Llama 3 dp 4", (), "07 Numbers that circulate", "it is dp 8",
          "Llama 3 405B trained on rows of 131,072 tokens on 16,384 GPUs, 8 x 16 x 16 x 4 of them",
          "8 x 16 x 16 x 8 (tensor, context, pipeline, data) are 16,384; with 4 there would be 8,192",
          "a misprint in the last column of table 4", "Llama team 2024, table 4, third row", "2024"),
    Claim("faulty GPUs 30.1 %", (), "09 Numbers that circulate", "35.3 % and 64.0 %",
          "in the pre-training of Llama 3 405B a faulty GPU was behind 148 of 419 unexpected interruptions, 30.1 %, "
          "and GPUs behind 58.7 % altogether",
          "148 of 419 are 35.3 %; the table's counts add up to 419 with 148, and to 268 for GPUs: 64.0 %",
          "the percentages were made with another count in the first row, 126 say; everybody quotes both",
          "Llama team 2024, section 3.3.4 and table 5", "2024"),
    Claim("speed-ups by library", (4,), "03 Numbers that circulate", "no batch and no wires",
          "8 GPUs give 5.5 times the speed with DP, 7.2 with DDP and 7.5 with FSDP",
          "that depends on the model, the batch and the wires; FSDP sends 1.5 times what DDP sends",
          "an illustration without a source; measure, or derive it from alpha-beta",
          "Rajbhandari et al., ZeRO, section 7", "2020"),
    Claim("ordinary numbers", (1,), "01 Numbers that circulate", "32-bit numbers they take 700 GB",
          "GPT-3's 175 billion parameters, stored as ordinary numbers, take 350 GB",
          "700 GB as ordinary numbers, of 32 bits; 350 GB in 16 bits", "two formats were taken for one", "arithmetic",
          "2026"),
    Claim("34 days on 10,000 GPUs", (1, 2), "01 Numbers that circulate", "4.2 days",
          "about 10,000 GPUs train GPT-3 in about 34 days, or in weeks",
          "34 days are 1,024 A100 at 140 TFLOP/s; 8,192 at the same rate would take 4.2 days",
          "the days of one calculation stand beside the GPUs of another", "Narayanan et al. 2021 (SC'21)", "2021"),
    Claim("a server for 100,000 dollars", (2,), "01 The third wall: money", "DGX A100",
          "a server of 8 A100 costs 100,000 dollars, a cluster of thousands of cards millions",
          "the DGX A100 was announced at 200,000 dollars; 128 of them, which are 1,024 GPUs, are 26 million",
          "cards were multiplied without the server around them", "VideoCardz, on the announcement", "2020"),
    Claim("strong scaling upside down", (3,), "01 Numbers that circulate", "5,128 %",
          "efficiency of strong scaling = (time of one GPU x number of GPUs) / time of many",
          "T1 / (N TN): 100 s on one and 15.6 s on eight are 80 %; the formula gives 5,128 %",
          "N stands above the line in place of below it", "arithmetic", "2026"),
    Claim("two latencies", (3,), "02 Which wire?", "There are two latencies",
          "InfiniBand HDR has a latency of 0.5 us in one table and 1 us in the next, Ethernet 100G 2 us and then 10 us",
          "a wire's own latency and that of a message between programs are two numbers; a step of a ring takes longer "
          "than both",
          "tables with different definitions", "the facts of the course, each with its source", "2026"),
    Claim("every two GPUs joined", (3,), "02 Numbers that circulate", "They are joined through switches",
          "NVLink joins any two of 8 A100 directly",
          "the GPUs of a DGX A100 meet in switches (NVSwitch), through which every pair has its full speed at once",
          "a picture of an older machine without switches", "NVIDIA DGX A100 data sheet", "2020"),
    Claim("groups the slow way round", (3,), "09 Sixty-four ranks", "the slow way round",
          "data-parallel groups are 0 to 3 and 4 to 7, model-parallel ones 0 and 4, 1 and 5, and so on",
          "with nodes of four this puts data parallelism inside a node and model parallelism across: the slow way "
          "round",
          "an example chosen for its numbers", "Narayanan et al. 2021 (SC'21), section 3", "2021"),
    Claim("7B by accumulation", (2,), "03 Numbers that circulate", "The model needs 112 GB on",
          "a small team trains 7 billion parameters on 8 A100 by data parallelism and gradient accumulation",
          "accumulation makes room for rows; weights, gradients and Adam's state take 112 GB on each GPU, so ZeRO is "
          "needed as well",
          "activations and state were taken for one", "Rajbhandari et al., ZeRO, section 3.1", "2020"),
    Claim("600 beside 25 GB/s", (1,), "02 Numbers that circulate", "300 GB/s",
          "inside a node a GPU has 600 GB/s, between nodes 25 GB/s: 24 times as much",
          "12 times: 300 GB/s in one direction beside 25 GB/s in one direction",
          "both directions of one wire stand beside one direction of the other", "NVIDIA A100 whitepaper", "2020"),
    Claim("QDR and FDR", (3,), "02 Which wire?", "40 Gbit/s on the wire, 8b/10b code",
          "InfiniBand QDR carries 5 GB/s and FDR 7 GB/s",
          "4.00 and 6.82 GB/s: of 10 bits on the wire of QDR 8 are data, of 66 bits of FDR 64",
          "bits on the wire were divided by eight, and the code was left out", "InfiniBand Trade Association", "2010"),
    Claim("a store has one speed", (3,), "01 The fourth wall: data", "hundreds at a time make it fast",
          "an object store has 1 to 10 GB/s, a network file system 10 to 100 GB/s",
          "both depend on how many read at once: one request to a store has some 0.09 GB/s, and a large cluster's file "
          "system has 2,000 GB/s in all",
          "the speed of one reader and that of a whole system are two numbers",
          "the facts of the course, each with its source", "2026"),
    Claim("the best GPU has 80 GB", (1,), "01 Models grew, devices did not follow", '"H200", "B200"',
          "the best GPU today is an A100, and it has 80 GB", "true in 2021; an H200 (2023) has 141 GB",
          "a text of one year is read in another", "NVIDIA H200 data sheet", "2023"),
    Claim("samples with two dtypes", (3,), "12 Room 1: samples of course texts", "PyTorch compares the two and refuses",
          "samples of all-gather, reduce-scatter and all-to-all write integers of 64 bits into floats of 32 bits",
          "each raises a ValueError; both sides need one dtype", "the samples were not run", "run here", "2026"),
    Claim("send and receive with two dtypes", (3,), "12 Room 1: samples of course texts", "24 bytes do not fit into 12",
          "three integers of 64 bits are sent and received as three floats of 32 bits",
          "gloo aborts the receiving process: 24 bytes do not fit into 12", "the sample was not run", "run here",
          "2026"),
    Claim("two groups that are one", (3,), "12 Room 1: samples of course texts", "[6, 6, 6, 6, 4, 5, 6, 7]",
          "ranks 0 to 3 are one group and ranks 4 to 7 another: dist.new_group([0, 1, 2, 3])",
          "that makes one group; ranks 4 to 7 get a warning and keep their own numbers, so half of the replicas would "
          "train apart; every rank has to make both groups",
          "the comment says more than the code", "run here", "2026"),
    Claim("local rank 0 is the main process", (4,), "12 Room 1: samples of course texts", "2 of 8 ranks write it",
          "if local_rank == 0, only the main process prints",
          "one process of each node prints; the main process is rank 0", "tried on one node only", "run here", "2026"),
    Claim("import os", (3, 4), "12 Room 1: samples of course texts", "Two samples use `os`",
          "os.environ['LOCAL_RANK'] in a sample without import os", "a NameError: import os",
          "the samples were not run", "run here", "2026"),
    Claim("DeepSpeedEngine is called", (4,), "06 DeepSpeed itself", "is what you get, not what you call",
          "model_engine, optimizer, _, _ = DeepSpeedEngine(model=..., config=...)",
          "deepspeed.initialize(...) returns the four values; and 32 rows must be 4 passes times the ranks times the "
          "rows of each",
          "the sample was not run", "DeepSpeed's own documentation", "2026"),
    Claim("a book that nobody finds", (3,), "12 Room 1: samples of course texts", "a book that we could not find",
          "further reading: Distributed Deep Learning, by Jeff Daily and others", "we have found no such book",
          "not known", "searches of 2026, which prove nothing", "2026"),
    Claim("fine-tuning for thousands", (1,), "01 What one person can do", "hundreds",
          "fine-tuning with LoRA costs a few hundred to a few thousand dollars",
          "100 million tokens of an 8B model cost tens of dollars; more tokens, several tries or larger models "
          "hundreds and thousands",
          "a range without the number of tokens", "the prices of the course", "2026"),
)


def claim(name: str) -> Claim:
    """The one of this name. ValueError, with all names, where there is none."""
    return find("claim", name, CLAIMS)
