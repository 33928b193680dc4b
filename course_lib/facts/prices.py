"""What devices and electricity cost: the most volatile numbers of the course, each with its date."""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

DATA_RECEIPTS = "published price lists, gathered by the data set 109-gpu-pricing"


@dataclass(frozen=True)
class Price:
    """What somebody asks for one device for an hour (`what` is then "an hour"), or for owning a thing."""

    device: str
    seller: str
    what: str
    price: Fact


def hourly(device: str, **sellers: float) -> tuple[Price, ...]:
    """Prices of an hour of `device`, in USD, one for each seller; `_` in a seller's name is a space."""
    return tuple(Price(device, seller.replace("_", " "), "an hour",
                       Fact(usd, "USD/h", DATA_RECEIPTS, "2026-11", unverified=True))
                 for seller, usd in sellers.items())


CNBC = "CNBC, interview with Jensen Huang: what a Blackwell GPU is expected to cost"

# The most volatile numbers of the course: a list price of one day. Look up your own before you decide anything.
PRICES: tuple[Price, ...] = (
    *hourly("A100 40GB", Lambda=1.99, AWS_p4d=2.74),
    *hourly("A100", RunPod=1.39, Lambda=2.79, AWS_p4de=3.43),
    *hourly("H100", RunPod_community=2.69, RunPod_secure=3.99, Lambda_8x=3.99, CoreWeave=6.16, AWS_p5=6.88,
            Azure=12.29),
    *hourly("B200", Lambda=6.69, CoreWeave=8.60),
    Price("A100", "NVIDIA", "DGX A100, 8 GPUs, to own",
          Fact(200_000, "USD", "VideoCardz, NVIDIA DGX A100 with eight Ampere Tesla A100 detailed", "2020-05")),
    Price("A100", "a shop", "one card, to own",
          Fact(9_900, "USD", "AssemblyAI, How to train large deep learning models as a startup", "2021")),
    Price("H100", "the market", "one card, to own",
          Fact(40_000, "USD", "The Motley Fool: what a unit cost at most in its first year", "2024-11")),
    Price("B200", "NVIDIA, at least", "one card, to own", Fact(30_000, "USD", CNBC, "2024-10")),
    Price("B200", "NVIDIA, at most", "one card, to own", Fact(40_000, "USD", CNBC, "2024-10")),
    Price("H800", "DeepSeek's own assumption", "an hour",
          Fact(2.0, "USD/h", "DeepSeek-AI, DeepSeek-V3 technical report, table 1", "2024-12")),
)

# EIA: U.S. Energy Information Administration
ELECTRICITY = Fact(0.0806, "USD/kWh", "EIA, Electric Power Monthly: average for industry, United States, 2023",
                   "2024-03")
# PUE: all that a data centre draws, over what its computers draw
PUE_AVERAGE = Fact(1.58, "ratio", "Uptime Institute, Global Data Center Survey", "2023")
HOUSEHOLD = Fact(10_715, "kWh/year", "EIA: average of a residential customer, United States, 2020", "2021-10")


def hourly_prices(device: str) -> tuple[Price, ...]:
    """What an hour of `device` costs, cheapest first; empty where we know no price."""
    found = (price for price in PRICES if price.device == device and price.what == "an hour")
    return tuple(sorted(found, key=lambda price: price.price.value))
