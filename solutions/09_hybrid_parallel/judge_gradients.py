"""Chapter 9, what a mesh of ranks has of one model: gradients, their norm, checkpoints.

Exercises 9.3 and 9.4: which gradients are added up over which axes of a mesh, and one norm of all of them.

    kind        is on               and there a rank has                             gradients of
    split       its stage           a slice along tp                                 its rows and tokens (dp, cp)
    replicated  its stage           all of it                                        its rows and tokens
    partial     its stage           all of it                                        a tp-th of its rows and tokens
    tied        both end stages     a slice along tp, used in another way on each    its rows and tokens
    expert      its stage           the experts of its ep rank                       what the ranks of its ep group send

Gradients are random numbers in float64, in 9.3 for every token: what they are of does not change who adds them up.

9.3: backward began at the sum of the losses of this rank's own tokens; asked is the gradient of the mean over all.
9.4: |g|_p = (sum over all numbers of |x|^p)^(1/p),  |g|_inf = the largest |x|

Exercises 9.5 and 9.6: a checkpoint that another layout has written, and how often to save.

    offsets, shape  of a piece: where its first number stands in the whole tensor, and how far it goes, dim by dim

    N  devices      M  seconds between failures of the whole      tau  seconds from one save to the next
    d  seconds that a save stops the run      w  seconds until it is written
    lost share(tau) = d/tau + (tau/2 + w + restart)/M,  least at tau = sqrt(2 d M)

Sources: Young 1974, "A First Order Approximation to the Optimum Checkpoint Interval"; Daly 2006, "A Higher Order
Estimate of the Optimum Checkpoint Interval for Restart Dumps"; Llama team 2024, sections 3.3.1 and 3.3.4.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from course_lib.checkpoint.piece import take
from course_lib.costs.money import daly_interval, seconds_between_failures, young_interval
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import ROUNDING, doubles, normal
from course_lib.grading.kinds import CollectiveExercise, NumberExercise, num_calls, too_little
from course_lib.grading.spent import Spent, highest
from course_lib.hybrid_parallel.layout import AXES, ParallelLayout

from . import on_rank

Inputs = list[dict[str, Any]]
Gradients = dict[str, Tensor]
Where = dict[str, int]  # a rank's coordinate along every axis
MODEL = {  # name: kind, stages (0 the first, -1 the last), shape in D, the dim along which tp cuts
    "embedding": ("tied", {0, -1}, (2, 1), 0), "up": ("split", {0}, (1, 2), 1), "down": ("split", {0}, (2, 1), 0),
    "norm": ("partial", {0}, (1,), None), "gate": ("replicated", {-1}, (1,), None),
    "expert": ("expert", {-1}, (1, 1), None), "final_norm": ("partial", {-1}, (1,), None)}
SUMMED = {"split": ("dp", "cp"), "replicated": ("dp", "cp"), "partial": ("dp", "cp", "tp"), "tied": ("dp", "cp", "pp"),
          "expert": ("edp",)}
COPIES = SUMMED | {"replicated": ("dp", "cp", "tp")}  # axes along which all have the same
HEAD = 3  # the gradient of the tied embedding as the head, of that as the table


class ReducedGradients(Exercise):
    number = "9.3"
    tolerance = ROUNDING
    compared = "gradients"
    words = "has the gradient"
    operations = frozenset({"send", "recv"})
    errors = (("write it with send and recv", "Here the all_reduce that you are given does so, over any axes."),)
    budget = "2(n-1)/n of a gradient's bytes for a group of n ranks, and 8 bytes to count the tokens"
    run = staticmethod(on_rank.reduced_gradients)
    sizes = (("dp3", 2), ("dp2 cp2 ep2", 2), ("dp2 tp2", 4), ("pp2 cp2", 2), ("pp2 tp2", 4), ("dp1", 2),
             ("dp2 pp2 tp2 ep2", 32))

    def example_trial(self) -> Trial:
        layout = ParallelLayout.from_string("dp2")
        ranks = [{**place, "gradients": {"weight": doubles([number])}, "kinds": {"weight": "split"},
                  "num_tokens": tokens}
                 for place, number, tokens in zip(places(layout), (3.0, 5.0), (2, 6))]
        return Trial(ranks, "the example, 2 ranks, dp2")

    def draw_trial(self, generator: torch.Generator, text: str, D: int) -> Trial:
        layout = ParallelLayout.from_string(text)
        counts = [4 + 3 * (place % 3) for place in range(layout.dp * layout.cp)]  # uneven, as where rows are padded
        each, tokens = random_gradients(generator, layout, D, sum(counts)), torch.arange(sum(counts))
        return trial_of(layout, after_backward(layout, each, tokens.split(counts)))

    def solve(self, inputs: Inputs) -> list[Gradients]:
        num_tokens = sum(inputs[rank]["num_tokens"] for rank in inputs[0]["groups"]["cp,dp"])
        return [{name: sum(inputs[other]["gradients"][name] for other in group if name in inputs[other]["gradients"])
                 / num_tokens for name, group in groups_of(rank).items()} for rank in inputs]

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        """Too little was added up by all_reduce; a byte less for each gradient, which may travel together."""
        least = sum(sent_bytes(rank) - len(rank["gradients"]) for rank in trial.inputs)
        return too_little(sum(answer["sent"] for answer in answers), least, SentBytes(traffic.sent, exact=True))

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        sent, allowed = [answer["sent"] for answer in answers], [sent_bytes(rank) for rank in trial.inputs]
        return [highest("sent", sent, allowed, claimed=True)]


class GlobalNorm(CollectiveExercise):
    number = "9.4"
    tolerance = (1e-6, 0.0)  # the number that is sent may have four bytes
    compared = "value"
    budget = "one all-reduce of one number"
    imports = errors = ()  # no backward here
    run = staticmethod(on_rank.global_norm)
    sizes = (("dp2 tp2", 2.0, False), ("pp2 tp2", 2.0, False), ("dp2 cp2 ep2", 2.0, False),
             ("dp2 tp2", math.inf, False), ("dp2 tp2", 2.0, True), ("dp2 cp2 ep2", math.inf, True),
             ("dp3", 1.0, False), ("dp1", 3.0, False), ("dp2 pp2 tp2 ep2", 2.0, True))

    def example_trial(self) -> Trial:
        ranks = [{**place, "gradients": {"a": doubles([3.0 + place["coordinates"]["tp"]]), "b": doubles([12.0])},
                  "kinds": {"a": "split", "b": "replicated"}, "norm_type": 2.0, "zero": False}
                 for place in places(ParallelLayout.from_string("dp2 tp2"))]
        return Trial(ranks, "the example, 4 ranks, dp2 tp2, norm 2")

    def draw_trial(self, generator: torch.Generator, text: str, norm_type: float, zero: bool) -> Trial:
        layout = ParallelLayout.from_string(text)
        whole = random_gradients(generator, layout, D=3)
        whole["expert"][-1, -1, -1] = -9  # the largest: of the last expert, where few ranks look, and negative
        inputs = after_reduction(layout, whole, zero)
        return trial_of(layout, [{**rank, "norm_type": norm_type, "zero": zero} for rank in inputs],
                        f"{' under ZeRO' * zero}, norm {norm_type:g}")

    def solve(self, inputs: Inputs) -> list[float]:
        dealt = ("dp", "cp", "edp") if inputs[0]["zero"] else ()  # no copies along them
        counted = [gradient for rank in inputs for name, gradient in rank["gradients"].items() if gradient.numel()
                   and not any(rank["coordinates"][axis] for axis in COPIES[rank["kinds"][name]] if axis not in dealt)]
        return [torch.nn.utils.get_total_norm(counted, inputs[0]["norm_type"]).item()] * len(inputs)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1)]

    def bound(self, trial: Trial) -> int:
        return 16

    def least(self, trial: Trial) -> int:
        """Where all ranks have the same, nobody needs to send; else a number leaves each, in four bytes or eight."""
        own = [[gradient.tolist() for gradient in rank["gradients"].values()] for rank in trial.inputs]
        return 0 if all(each == own[0] for each in own) else 8 * trial.world_size // 2


def trial_of(layout: ParallelLayout, inputs: Inputs, words: str = "") -> Trial:
    return Trial(inputs, f"{ranks_of(len(inputs))}, {str(layout).replace(',', ' ')}{words}")


def sent_bytes(rank: dict[str, Any]) -> int:
    """What a rank sends where every gradient is added up once, and the tokens are."""
    return on_rank.ring_bytes(8, len(rank["groups"]["cp,dp"])) + sum(
        on_rank.ring_bytes(rank["gradients"][name].nbytes, len(group)) for name, group in groups_of(rank).items())


def groups_of(rank: dict[str, Any]) -> dict[str, list[int]]:
    """The ranks over which each gradient is added up, by name."""
    return {name: rank["groups"][on_rank.group_key(SUMMED[kind])] for name, kind in rank["kinds"].items()}


def random_gradients(generator: torch.Generator, layout: ParallelLayout, D: int, *num_tokens: int) -> Gradients:
    """Gradients of the whole model by name, (shape) or (E, shape) for experts.

    num_tokens: given, they are those of each token's loss, (num_tokens, shape).
    """
    return {name: normal(generator, *num_tokens, *[layout.ep] * (kind == "expert"), *(n * D for n in shape))
            for name, (kind, _, shape, _) in MODEL.items()}


def rank_inputs(layout: ParallelLayout, whole_at: Callable[[str, Where], Tensor]) -> Inputs:
    """The inputs of each rank: its gradients, their kinds, its coordinates and its groups.

    whole_at(name, where): what a gradient is at these coordinates before tp and ep cut it.
    """
    inputs = []
    for place in places(layout):
        where, own, kinds = place["coordinates"], {}, {}
        for name, (kind, stages, _, dim) in MODEL.items():
            if stages & {where["pp"], where["pp"] - layout.pp}:
                whole = whole_at(name, where)[where["ep"] if kind == "expert" else ...]
                cut = whole if dim is None else whole.tensor_split(layout.tp, dim)[where["tp"]]
                own[name], kinds[name] = cut.clone(), kind
        inputs.append({"gradients": own, "kinds": kinds, **place})
    return inputs


def places(layout: ParallelLayout) -> Inputs:
    """Of each rank its coordinates and groups: data, so that a rank need not know how they come about."""
    named = {axes for all_axes in (AXES, ("pp", "ep", "edp")) for n in (1, 2, 3, 4)
             for axes in combinations(all_axes, n)}
    return [{"coordinates": {**layout.coordinates(rank), "edp": layout.group_of(rank, "edp").index(rank)},
             "groups": {on_rank.group_key(axes): layout.group_of(rank, *axes) for axes in sorted(named)} | {"": [rank]}}
            for rank in range(layout.world_size)]


def after_backward(layout: ParallelLayout, each: Gradients, dealt: Sequence[Tensor]) -> Inputs:
    """What each rank has of the sum over its own tokens, before anything is added up over the ranks.

    each: (tokens, shape), of every token's loss; dealt: the tokens of each place in the plane of dp and cp
    """
    parts = [tokens[tp::layout.tp] for tokens in dealt for tp in range(layout.tp)]  # place by place of dp, cp and tp

    def whole_at(name: str, where: Where) -> Tensor:
        kind, first = MODEL[name][0], where["edp"] * layout.ep  # of the places of its ep group
        place = place_in_plane(where, layout)
        tokens = torch.cat(parts[first:first + layout.ep]) if kind == "expert" else \
            parts[place] if kind == "partial" else dealt[place // layout.tp]
        own = each[name][tokens].sum(0)
        table, head = where["pp"] == 0, where["pp"] == layout.pp - 1
        return (table + HEAD * head) * own if kind == "tied" else own

    inputs = rank_inputs(layout, whole_at)
    for rank in inputs:
        rank["num_tokens"] = len(dealt[place_in_plane(rank["coordinates"], layout) // layout.tp])
    return inputs


def place_in_plane(where: Where, layout: ParallelLayout) -> int:
    """The number of a rank among those of its stage, counted along tp, then cp, then dp."""
    return where["edp"] * layout.ep + where["ep"]


def after_reduction(layout: ParallelLayout, whole: Gradients, zero: bool) -> Inputs:
    """What each rank has of the whole gradient; under ZeRO a flat piece, of as many as there would be copies."""
    inputs = rank_inputs(layout, lambda name, where: whole[name])
    for rank in inputs if zero else ():
        edp, replica = rank["coordinates"]["edp"], place_in_plane(rank["coordinates"], layout) // layout.tp
        for name, gradient in rank["gradients"].items():
            n, place = (layout.edp, edp) if name == "expert" else (layout.dp * layout.cp, replica)
            size = -(-gradient.numel() // n)  # the last pieces may be empty
            rank["gradients"][name] = gradient.flatten()[place * size:(place + 1) * size].clone()
    return inputs


Range = list[list[int]]  # offsets and shape
STATE = 12  # bytes a parameter: the weight and AdamW's two, in fp32
HOURS = round(54 * 24 * 16_384 / 419)  # of a device for each failure: 419 unexpected ones in 54 days of 16,384 H100
PCIE = 50e9  # bytes/s from a device into the host's memory, of the 64e9 of PCIe 5 x16


class Resharded(Exercise):
    number = "9.5"
    compared = "returned"
    budget = "no more bytes read than the piece has, on each rank"
    run = staticmethod(on_rank.reshard)
    sizes = (  # a shape, and into how many pieces each dim is cut: as saved, as wanted
        ("6 x 4", "2 x 1", "3 x 1"), ("4 x 6", "3 x 1", "1 x 2"), ("7", "3", "2"), ("8 x 2", "4 x 1", "2 x 1"),
        ("5 x 7", "2 x 2", "1 x 3"), ("4 x 3 x 5", "2 x 1 x 2", "1 x 3 x 1"), ("4 x 4", "2 x 2", "1 x 1"),
        ("96 x 256", "3 x 1", "2 x 2"))

    def example_trial(self) -> Trial:
        inputs = {"offsets": [2], "shape": [3], "saved": {"a": [[3], [4]], "b": [[0], [3]]},
                  "contents": {"a": doubles([30, 40, 50, 60]), "b": doubles([0, 10, 20])}}
        return Trial([inputs], "the example, 1 rank")

    def draw_trial(self, generator: torch.Generator, *case: str) -> Trial:
        shape, old, new = ([int(number) for number in text.split(" x ")] for text in case)
        whole, (first, *others), wanted = normal(generator, *shape), ranges_of(shape, old), ranges_of(shape, new)
        # named in another order than the pieces lie in
        saved = {f"__{number}_0.distcp": own for number, own in enumerate([*others, first])}
        contents = {file: take(whole, *own).clone() for file, own in saved.items()}
        return Trial([{"offsets": offsets, "shape": extent, "saved": saved, "contents": contents}
                      for offsets, extent in wanted],
                     f"{ranks_of(len(wanted))}, {case[0]} cut {case[1]}, wanted {case[2]}")

    def solve(self, inputs: Inputs) -> list[Tensor]:
        saved = inputs[0]["saved"]
        ends = [[offset + size for offset, size in zip(*own)] for own in saved.values()]
        whole = torch.empty(list(map(max, zip(*ends))), dtype=torch.float64)
        for file, own in saved.items():
            take(whole, *own).copy_(inputs[0]["contents"][file])
        return [take(whole, rank["offsets"], rank["shape"]) for rank in inputs]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        read, wanted = [answer["read"] for answer in answers], [piece.nbytes for piece in self.solve(trial.inputs)]
        return [highest("read", read, wanted, claimed=True)]


def ranges_of(shape: Sequence[int], parts: Sequence[int]) -> list[Range]:
    """The pieces of a tensor whose dims are cut into `parts`; along the last dim they follow one another.

    Where a dim cannot be cut evenly, sizes differ by one.
    """
    cuts = [[part.tolist() for part in torch.arange(size).tensor_split(n)] for size, n in zip(shape, parts)]
    return [[[dim[0] for dim in own], [len(dim) for dim in own]] for own in product(*cuts)]


class SaveInterval(NumberExercise):
    number = "9.6"
    unit = "exact s"
    budget = "Young's interval, or Daly's, who counts to a higher order"
    LLAMA = 16_384, HOURS, 405e9, PCIE
    EXAMPLE = 10, 5, 1e9, 1.2e9, 3e9
    cases = (("the example, 10 devices, the run waits", (*EXAMPLE, False)),
             ("the same, asynchronously", (*EXAMPLE, True)),
             ("405B on 16,384 H100, storage of 100 GB/s, the run waits", (*LLAMA, 100e9, False)),
             ("405B on them, asynchronously", (*LLAMA, 100e9, True)),
             ("the same on Llama 3's storage of 2 TB/s, asynchronously", (*LLAMA, 2e12, True)),
             ("70B on 1,024 H100, storage of 10 GB/s, the run waits", (1024, HOURS, 70e9, PCIE, 10e9, False)),
             ("7B on 8 devices that copy 1 GB/s, storage of 1 GB/s, asynchronously", (8, 2000, 7e9, 1e9, 1e9, True)))

    def solve(self, num_devices: int, device_hours: float, num_parameters: float, copy_bytes_per_s: float,
              storage_bytes_per_s: float, asynchronous: bool,
              interval: Callable[[float, float], float] = young_interval) -> float:
        M = seconds_between_failures(1, 3600 * device_hours, 1, num_devices)
        state = STATE * num_parameters
        write, copy = state / storage_bytes_per_s, state / num_devices / copy_bytes_per_s
        return max(write, interval(copy, M)) if asynchronous else interval(write, M)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        by_daly = self.solve(*self.arguments(trial), daly_interval)
        return None if alike(self.select_parts(answers), by_daly, self.tolerance) else super().wrong(trial, answers)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, hours, B = 8 * source.randint(1, 500), 1000 * source.randint(5, 60), source.randint(1, 90)
        storage = source.randint(1, 40)
        return (f"{B}B on {N} devices, a failure in {hours:,} h of one, {storage} GB/s, the run waits",
                (N, hours, B * 1e9, PCIE, storage * 1e9, False))
