"""One training run on one page: does it fit, how long, what does it cost; and which strategy to begin with."""

from dataclasses import dataclass

from course_lib.costs.flops import UTILISATION, activation_bytes, training_flops
from course_lib.costs.memory import USABLE, Memory, find_precision, training_memory
from course_lib.costs.money import DAY_S, dollars, kilowatt_hours, training_seconds
from course_lib.facts import PUE_AVERAGE, SYSTEMS, Accelerator, Model, hourly_prices
from course_lib.facts.fact import above_zero, at_least


@dataclass(frozen=True)
class TrainingNeeds:
    """`needed`: on each device. `usd` and `dearest_usd`: at the lowest and the highest rent of facts, None where it
    has none. `kwh` is None where it has no power."""

    model: Model
    device: Accelerator
    num_devices: int
    precision: str
    zero_stage: int
    needed: Memory
    flops: float
    seconds: float
    usd: float | None
    dearest_usd: float | None
    kwh: float | None

    @property
    def fits(self) -> bool:
        """Whether a device has room for it: USABLE of its memory, the rest being taken by context and fragments."""
        return self.needed.total <= USABLE * self.device.memory_bytes

    @property
    def days(self) -> float:
        """How long it takes, in days."""
        return self.seconds / DAY_S


def plan_run(model: Model, device: Accelerator, num_devices: int = 1, precision: str = "mixed", zero_stage: int = 0,
             num_tokens: float | None = None, utilisation: float = UTILISATION) -> TrainingNeeds:
    """What training `model` on `num_tokens` (its own where published) takes on these devices, with data parallelism.

    Time is 6ND over the peak times `utilisation`; money the cheapest and the dearest rent of facts; energy that of
    whole servers where facts has them (else the device alone), in an average data centre. Activations: one micro-batch
    of rows as long as the model's, attention not stored; 0 where the shape was not published. ValueError for a
    precision that the device has no units for, or no tokens.
    """
    tokens = num_tokens or (model.tokens.value if model.tokens else None)
    if tokens is None:
        raise ValueError(f"num_tokens={num_tokens!r}: expected a number, nobody has published on how many "
                         f"{model.name} trained")
    how = find_precision(precision)
    peak = device.peak_flops_per_s(device.half_precision if how.peak == "half" else how.peak)
    kept = 0 if model.shape is None else activation_bytes(model.shape, 1, recompute="selective",
                                                          bytes_per_number=how.activation_bytes)
    needed = training_memory(model.parameters.value, precision, zero_stage, num_devices, kept)
    flops = training_flops(model.active_parameters, tokens)
    seconds = training_seconds(flops, num_devices, peak, utilisation)
    # From the cheapest to the dearest, as facts sorts them.
    rents = [dollars(seconds, num_devices, each.price.value) for each in hourly_prices(device.name)]
    watts = watts_in_server(device)
    return TrainingNeeds(model, device, num_devices, precision, zero_stage, needed, flops, seconds,
                         rents[0] if rents else None, rents[-1] if rents else None,
                         kilowatt_hours(seconds, num_devices, watts, PUE_AVERAGE.value) if watts else None)


def watts_in_server(device: Accelerator) -> float | None:
    """Its share of the server it comes in; its own power where we know no server."""
    for system in SYSTEMS:
        if system.device == device.name:
            return system.power.value / system.num_devices
    return device.power.value if device.power else None


@dataclass(frozen=True)
class Strategy:
    """What to begin with, the reason in a sentence, and the chapters that teach it."""

    name: str
    why: str
    chapters: tuple[int, ...]


def rule_of_thumb(num_parameters: float) -> str:
    """What people say: below 1B data parallelism, from 1B to 10B sharded, above 10B in three dimensions.

    >>> [rule_of_thumb(N) for N in (124e6, 7e9, 70e9)]
    ['data parallel', 'sharded data parallel', '3D parallel']
    """
    N = above_zero(num_parameters, "num_parameters")
    return "data parallel" if N < 1e9 else "sharded data parallel" if N <= 10e9 else "3D parallel"


def starting_strategy(num_parameters: float, device_bytes: float = 80e9, devices_in_node: int = 8,
                      room: float = 0.5) -> Strategy:
    """As rule_of_thumb, from arithmetic: the first of three that leaves `room`, a share of the memory, for activations.

    16 bytes a parameter on every device; a share of them on each device of a node; more cuts than a node has devices.
    """
    N, n = above_zero(num_parameters, "num_parameters"), at_least(devices_in_node, 1, "devices_in_node")
    limit = above_zero(device_bytes, "device_bytes") * (1 - room)
    whole, shard = training_memory(N).total, training_memory(N, zero_stage=3, num_devices=n).total
    if whole <= limit:
        return Strategy("data parallel", f"{whole / 1e9:.0f} GB of state fit on each device", (3,))
    if shard <= limit:
        return Strategy("sharded data parallel", f"{whole / 1e9:.0f} GB do not fit, {shard / 1e9:.0f} GB on each of "
                        f"{n} do",
                        (3, 6))
    return Strategy("3D parallel", f"even cut in {n}, {shard / 1e9:.0f} GB are too much for one device", (4, 5, 6, 9))
