"""BucketOverlap: how much of the communication is hidden behind backward, and how large should a bucket be?"""

from __future__ import annotations

import math
from typing import Any

import traitlets
from matplotlib.figure import Figure

from course_lib.costs.overlap import ALONE, CAPS, MACHINES, MIB, MODELS, TOGETHER, Overlap, simulate
from course_lib.widgets import overlap_picture
from course_lib.widgets.base import BadParameter, Explorable, WholeNumber

MIN_RANKS = 2
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class BucketOverlap(Explorable, script="bucket_overlap.js"):
    """One backward pass of `model` with buckets of at most `bucket_cap_mb` MiB (0: every gradient alone).

    `model` is one of costs.overlap.MODELS, `machine` of MACHINES; the widget's lists have them all.
    """

    bucket_cap_mb = WholeNumber(25, ALONE, TOGETHER).tag(sync=True, echo_update=False)
    num_ranks = WholeNumber(8, MIN_RANKS).tag(sync=True, echo_update=False)
    machine = traitlets.Any("A100, InfiniBand HDR").tag(sync=True, echo_update=False)
    model = traitlets.Any("GPT-2, 124M").tag(sync=True, echo_update=False)
    choices = traitlets.Dict().tag(sync=True, echo_update=False)
    parameters = ("bucket_cap_mb", "num_ranks", "machine", "model")

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        ranks = {name: [n for n in RANKS if n <= each.max_ranks] for name, each in MACHINES.items()}
        self.choices = {"models": list(MODELS), "caps": [[cap, cap_told(cap)] for cap in CAPS], "machines": ranks}

    @traitlets.validate("model", "machine", "num_ranks")
    def _there_is_such_a_machine(self, proposal: Any) -> Any:
        asked = {"model": self.model, "machine": self.machine, "num_ranks": self.num_ranks}
        asked[proposal.trait.name] = proposal.value
        for name, known in (("model", MODELS), ("machine", MACHINES)):
            if asked[name] not in list(known):  # a list, as what was given may have no hash
                raise BadParameter(f"{name}={asked[name]!r}: expected one of {', '.join(map(repr, known))}")
        most = MACHINES[asked["machine"]].max_ranks
        if asked["num_ranks"] > most:
            raise BadParameter(f"num_ranks={asked['num_ranks']}: expected at most {most} with {asked['machine']}")
        return proposal.value

    def overlap(self, bucket_cap_mb: int | None = None) -> Overlap:
        """The simulated step, with the widget's cap or another one."""
        on, cap = MACHINES[self.machine], self.bucket_cap_mb if bucket_cap_mb is None else bucket_cap_mb
        return simulate(MODELS[self.model].pieces(on.flops_per_s), cap * MIB, self.num_ranks, on.link)

    def sweep(self) -> list[tuple[int, float]]:
        """(cap in MiB, exposed seconds) for the caps of the slider and the present one."""
        return [(cap, self.overlap(cap).exposed_s) for cap in sorted({*CAPS, self.bucket_cap_mb})]

    def compute(self) -> dict[str, Any]:
        shown, sweep = self.overlap(), self.sweep()
        return {
            **self.texts(shown, sweep),
            "blocks": [[block_told(name), start, end] for name, start, end in shown.blocks],
            "buckets": [[bucket.start_s, bucket.end_s, bytes_told(bucket.num_bytes)] for bucket in shown.buckets],
            "backward_s": shown.backward_s,
            "end_s": shown.end_s,
            "ticks": [[at, seconds(at)] for at in ticks(shown.end_s)],
            "sweep": [[cap_told(cap), exposed, seconds(exposed), cap == self.bucket_cap_mb] for cap, exposed in sweep],
            "key": f"{self.model} | {self.machine} | n={self.num_ranks} | cap={self.bucket_cap_mb}",
        }

    def texts(self, shown: Overlap, sweep: list[tuple[int, float]]) -> dict[str, str]:
        exposed = dict(sweep)
        best = min(sweep, key=lambda each: each[1])
        num, size = len(shown.buckets), MODELS[self.model]
        longest = max(shown.buckets, key=lambda bucket: bucket.num_bytes)
        return {
            "headline": f"{percent(shown.hidden)} of the communication is hidden behind backward: "
                        f"{seconds(shown.exposed_s)} of {seconds(shown.communication_s)} are left",
            "detail": f"{num} all-reduce{'s' * (num > 1)}, the largest of {bytes_told(longest.num_bytes)}. Each "
                      f"gradient alone would leave {seconds(exposed[ALONE])}, one message for all "
                      f"{seconds(exposed[TOGETHER])}; best of these: {cap_told(best[0])}, {seconds(best[1])}.",
            "exposed": f"exposed {seconds(shown.exposed_s)}",
            "backward": f"backward {seconds(shown.backward_s)}",
            "note": f"numbers are layers; {size.num_sequences} sequences of {size.sequence_length:,} tokens a rank, "
                    f"{MACHINES[self.machine].flops_per_s / 1e12:.4g} TFLOP/s each, float32 gradients, "
                    f"{MACHINES[self.machine].told} one way",
            "chart": "Exposed time by bucket size",
        }

    def sentence(self) -> str:
        shown = self.overlap()
        said = self.texts(shown, self.sweep())
        return (f"BucketOverlap, {self.model} on {self.num_ranks} ranks of {self.machine}, buckets: "
                f"{cap_told(self.bucket_cap_mb)}: {said['headline']}; {said['detail']}")

    def picture(self) -> Figure:
        return overlap_picture.draw(self.compute())


def cap_told(cap_mb: int) -> str:
    return {ALONE: "each alone", TOGETHER: "all in one"}.get(cap_mb, f"{cap_mb:,} MiB")


def block_told(name: str) -> str:
    return name if not name.isdigit() else f"layer {name}"


def percent(share: float) -> str:
    """Never "100%" while something is left."""
    return f"{math.floor(100 * share + 1e-9)}%"


def seconds(value: float) -> str:
    """Three figures: 12.3 ms, 1.46 s, 380 µs."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * size:
            figure = value / size
            return f"{figure:.0f} {unit}" if figure >= 99.95 else f"{figure:.3g} {unit}"
    return "0 s"


def bytes_told(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.3g} MiB" if num_bytes >= 1000 * 1024 else f"{num_bytes / 1024:.3g} KiB"


def ticks(end_s: float) -> list[float]:
    """Five to ten round times from 0 on."""
    rough = end_s / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(part for part in (power, 2 * power, 5 * power) if part <= rough * (1 + 1e-9))
    return [number * step for number in range(math.floor(end_s / step + 1e-9) + 1)]
