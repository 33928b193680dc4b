"""Exercise 9.3: which gradients are added up over which axes of the mesh, and what they are divided by.

    backward began at the sum of the losses of this rank's own tokens; asked is the gradient of the mean over all tokens
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.chapters.hybrid_parallel.mesh import Sizes, named, words_for
from course_lib.grading.chapters.hybrid_parallel.pieces import (
    PLANE,
    held_by,
    places,
    rank_gradients,
    shares,
    token_gradients,
)
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, most

Inputs = list[dict[str, Any]]
Table = dict[str, tuple[str, ...]]  # kind -> axes
AXES: Table = {"split": ("dp", "cp"), "replicated": ("dp", "cp"), "partial": ("dp", "cp", "tp"),
               "tied": ("dp", "cp", "pp"), "expert": ("edp",)}


class ReducedGradients(Exercise):
    number = "9.3"
    function = "my_reduced_gradients"
    points = 4
    tolerance = ROUNDING
    operations = frozenset({"send", "recv"})
    right = "all gradients are right"
    budget = "2(n-1)/n of a gradient's bytes for a group of n ranks, and 8 bytes to count the tokens"
    hints = (
        "Ask two questions about each kind. Which ranks hold the same numbers, and so must step alike? And what has "
        "each of them seen of the batch: the same tokens, other ones, or one's own use of the same weight?",
        "Ranks of dp and cp have seen other tokens, so all but experts are added up over both. Of tp only what is "
        "`partial`: a slice is nobody else's, and of `replicated` each tp rank has everything already. `tied` is used "
        "on two stages. Experts have met the tokens of their whole ep group, and the same expert is on the ranks of "
        "edp. The divisor is the number of all tokens, for experts as well.",
        "axes = {\"split\": (\"dp\", \"cp\"), \"replicated\": ..., \"partial\": ..., \"tied\": ..., \"expert\": ...}\n"
        "all_reduce(num_tokens, ...)\n"
        "for name, gradient in gradients.items():\n"
        "    all_reduce(gradient, *axes[kinds[name]])\n"
        "    gradient /= ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for sizes, D in ((named(dp=2, tp=2), 4), (named(cp=2, pp=2), 2), ({**named(dp=2, cp=2), "ep": 2}, 2),
                         (named(pp=2, tp=2), 4), (named(dp=3), 2), (named(), 2),
                         ({**named(dp=2, pp=2, tp=2), "ep": 2}, 32)):
            sizes = {**sizes, "ep": sizes.get("ep", 1)}
            dealt = shares(sizes)
            each = token_gradients(generator, sum(map(len, dealt)), sizes["ep"], D, 2 * D)
            ranks = [{"gradients": rank_gradients(each, dealt, where, sizes), "kinds": held_by(where, sizes),
                      "num_tokens": len(dealt[where["dp"] * sizes["cp"] + where["cp"]]), "sizes": sizes}
                     for where in places(sizes)]
            made.append(Trial(ranks, f"{ranks_of(len(ranks))}, {words_for(sizes)}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        gradients = {name: gradient.clone() for name, gradient in inputs["gradients"].items()}
        sent: list[int] = []

        def all_reduce(tensor: Tensor, *axes: str) -> None:
            sent.append(added_up(tensor, axes, inputs["sizes"]))

        num_tokens = torch.tensor(float(inputs["num_tokens"]), dtype=torch.float64)
        function(gradients, dict(inputs["kinds"]), num_tokens, all_reduce)
        return {"gradients": {name: plain(gradient) for name, gradient in gradients.items()}, "sent": sum(sent)}

    def given(self, answers: list[Any]) -> list[Any]:
        return [part(answer, "gradients") for answer in answers]

    def expected(self, inputs: Inputs) -> list[Any]:
        return played(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Any]]]:
        sizes, right = inputs[0]["sizes"], played(inputs)
        plane = sizes["dp"] * sizes["cp"]

        def reduced(counted: tuple[str, ...] | None = PLANE, by: float = 1.0, **changes: tuple[str, ...]) -> list[Any]:
            return played(inputs, {**AXES, **changes}, counted, by)

        for counted in ((), PLANE):
            yield ("nothing is added up: every rank has seen its own tokens alone",
                   reduced(counted, **dict.fromkeys(AXES, ())))
        if sizes["tp"] > 1:
            yield ("`partial` is not added up over tp: each rank of tp has seen a tp-th of the tokens, so that the "
                   "copies of the norms would step apart", reduced(partial=PLANE))
            yield ("`replicated` is added up over tp as well: all ranks of tp have computed the same with all tokens, "
                   "and the gradient is tp times too large", reduced(replicated=(*PLANE, "tp")))
            yield ("the slices of tp are added up: they are different parts of one matrix",
                   reduced(split=(*PLANE, "tp")))
            yield ("everything is added up over tp: slices are different parts of one matrix, and of `replicated` all "
                   "have the same", reduced(**dict.fromkeys(("split", "replicated", "tied"), (*PLANE, "tp")),
                                            expert=("edp", "tp")))
        if sizes["pp"] > 1:
            yield ("the tied embedding is not added up over pp: the first stage looks tokens up in it and the last one "
                   "compares with it, and the gradient is the sum of both uses", reduced(tied=PLANE))
        yield ("the experts are added up over tp as well: all ranks of tp have computed the same with them",
               reduced(expert=("edp", "tp")))
        yield ("the experts are not added up: the ranks of edp have the same ones, and have met other tokens",
               reduced(expert=()))
        if sizes["ep"] > 1:
            yield ("the experts are added up over dp and cp, so over different experts: the same ones are on the ranks "
                   "of edp", reduced(expert=PLANE))
            yield ("the experts are added up over ep: these are ranks with different experts; the same ones are on the "
                   "ranks of edp", reduced(expert=("ep",)))
        without_cp: Table = {kind: tuple(axis for axis in axes if axis != "cp") for kind, axes in AXES.items()}
        for counted in (("dp",), PLANE):
            yield ("cp is left out: its ranks have the same parameters and other tokens of the same rows, as dp's have "
                   "other rows", reduced(counted, **without_cp))
        yield "nothing is divided: the mean over all tokens is asked, and these are sums", reduced(None)
        yield ("gradients are divided by the number of this rank's tokens: the others' are in the sum as well, so add "
               "num_tokens up first", reduced(()))
        yield ("gradients are divided by the number of ranks of dp and cp: backward began at sums, and the mean over "
               "all tokens is asked", reduced(None, plane))
        for by in (sizes["tp"] * sizes["pp"], sizes["tp"], sizes["pp"], plane, len(inputs)):
            yield ("gradients are too small by a whole factor: tokens are counted over tp or pp as well, where ranks "
                   "have the same ones, or the number of ranks divides besides. The number of all tokens alone makes "
                   "the mean", reduced(by=by))
        means = [{**rank, "gradients": {name: gradient / rank["num_tokens"]
                                        for name, gradient in rank["gradients"].items()}} for rank in inputs]
        yield ("every gradient is the mean of the ranks' means: ranks with few tokens count as much as those with "
               "many. Add up sums, and divide once", played(means, AXES, None, plane))
        edp = plane // sizes["ep"]
        for by, cause in ((edp, "an expert's gradient is a mean over edp besides: the sum, divided by the number of "
                                "all tokens, is asked"),
                          (1 / sizes["ep"], "an expert's gradient is divided by a part of the tokens: those of its "
                                            "whole ep group are in it, so the divisor is the same as everywhere")):
            yield cause, [{name: gradient / by if rank["kinds"][name] == "expert" else gradient
                           for name, gradient in own.items()} for own, rank in zip(right, inputs)]

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            own = own if isinstance(own, dict) else {}
            for name, gradient in right.items():
                if not alike(own.get(name), gradient, self.tolerance):
                    return (f"on rank {rank} the gradient of {name} is {describe(own.get(name))}: expected "
                            f"{describe(gradient)}")
        raise AssertionError("nothing differs")

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        sent, allowed = [answer["sent"] for answer in answers], [bound(r, trial.inputs) for r in range(len(answers))]
        rank = most(sent, allowed)
        return [Spent("sent", sent[rank], allowed[rank], rank=rank, claimed=True,
                      why="every gradient is added up once, over one group, and num_tokens once over dp and cp")]


def group_of(rank: int, axes: Sequence[str], sizes: Sizes) -> list[int]:
    """The ranks that differ from `rank` along these axes only. ValueError for what is no axis."""
    if strange := set(axes) - {*sizes, "edp"}:
        raise ValueError(f"all_reduce over {sorted(strange)}: expected names of axes, {', '.join((*sizes, 'edp'))}")
    basis = {"tp", "pp", "ep", "edp"} if {"ep", "edp"} & set(axes) else {"tp", "pp", "dp", "cp"}
    if set(axes) - basis:
        raise ValueError(f"all_reduce over {list(axes)}: ep and edp are the ranks of dp and cp dealt out in another "
                         "way, so name the ones or the others")
    everywhere = places(sizes)
    return [other for other, where in enumerate(everywhere)
            if all(where[axis] == everywhere[rank][axis] for axis in basis - set(axes))]


def ring_bytes(num_bytes: int, n: int) -> int:
    return -(-2 * (n - 1) * num_bytes // n)


def added_up(tensor: Tensor, axes: Sequence[str], sizes: Sizes) -> int:
    """On a rank: all-reduce over the group of these axes, in place. Returns the bytes sent, by the ring convention.

    No process group is made: a rank adds up one piece of the tensor, and sends the sum to all others.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"all_reduce of a {type(tensor).__name__}: expected a tensor, then the names of axes")
    group = group_of(dist.get_rank(), axes, sizes)
    n, own = len(group), group.index(dist.get_rank())
    if n == 1:
        return 0
    lengths = exchange([torch.tensor([tensor.numel()])] * n, [torch.tensor([0]) for _ in group], group)
    if len(set(map(int, lengths))) > 1:
        raise ValueError(f"all_reduce over {', '.join(axes)}: this rank came with {tensor.numel()} numbers, and its "
                         f"group with {list(map(int, lengths))}. Over pp only what both stages hold can be added up")
    flat = tensor.detach().flatten()
    pieces = list(flat.clone().tensor_split(n))
    total = sum(exchange(pieces, [torch.empty_like(pieces[own]) for _ in group], group))
    exchange([total] * n, list(flat.tensor_split(n)), group)
    tensor.detach().copy_(flat.view(tensor.shape))
    return ring_bytes(tensor.nbytes, n)


def exchange(outgoing: list[Tensor], arriving: list[Tensor], group: list[int]) -> list[Tensor]:
    """outgoing[i] goes to group[i], and arriving[i] is filled with what comes from there."""
    requests = []
    for there, here, other in zip(outgoing, arriving, group):
        if other == dist.get_rank():
            here.copy_(there)
            continue
        requests += [dist.P2POp(dist.isend, there, other)] * (there.numel() > 0)
        requests += [dist.P2POp(dist.irecv, here, other)] * (here.numel() > 0)
    for request in dist.batch_isend_irecv(requests) if requests else ():
        request.wait()
    return arriving


def played(inputs: Inputs, table: Table = AXES, counted: Sequence[str] | None = PLANE, by: float = 1.0) -> list[Any]:
    """What each rank would have if gradients were added up by `table`, and divided by the tokens of the group `counted`
    and by `by`. What another rank of a group does not have, or has in another shape, is left out."""
    answers = []
    for r, rank in enumerate(inputs):
        divisor, own = by, {}
        if counted is not None:
            divisor *= sum(inputs[other]["num_tokens"] for other in group_of(r, counted, rank["sizes"]))
        for name, gradient in rank["gradients"].items():
            group = group_of(r, table[rank["kinds"][name]], rank["sizes"])
            others = [inputs[other]["gradients"].get(name) for other in group]
            own[name] = sum(other for other in others if other is not None and other.shape == gradient.shape) / divisor
        answers.append(own)
    return answers


def bound(r: int, inputs: Inputs) -> int:
    """Bytes that rank r sends, by the ring convention."""
    rank = inputs[r]
    return ring_bytes(8, len(group_of(r, PLANE, rank["sizes"]))) + sum(
        ring_bytes(gradient.nbytes, len(group_of(r, AXES[rank["kinds"][name]], rank["sizes"])))
        for name, gradient in rank["gradients"].items())
