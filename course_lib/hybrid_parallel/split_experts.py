"""One expert's width over several ranks: chapter 5 inside of chapter 8, expert tensor parallelism.

    n  ranks of etp, r this one      E_r experts of each      M_r rows that have come to this rank
    D  hidden size      F  width      rows: all ranks' M_0 + M_1 + ...

    gather    the rows of all ranks to each of them: (n-1) M_r D numbers leave this one
    experts   F/n columns of w1 (of gate and of up), F/n rows of w2: a summand of each row's result
    home      the summands of the own M_r rows, added up: (rows - M_r) D numbers leave this one

b2 is cut over D, and each rank adds its part: so every number of an expert has one home.
Source: Liu et al. 2025, "MoE Parallel Folding", whose dispatcher gathers and reduce-scatters behind the all-to-all.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives.differentiable import Pair
from course_lib.expert_parallel import Experts
from course_lib.expert_parallel.dispatch import all_to_all_rows, by_expert, by_rank
from course_lib.groups.membership import Member
from course_lib.tensor_parallel.cut import cut_evenly


class SplitExperts(Experts):
    """This rank's part of each expert of `whole`. Forward: (M_r, D), counts -> (M_r, D). Collective."""

    def __init__(self, whole: Experts, etp: Member) -> None:
        # Not that of Experts, which would draw numbers for whole experts.
        nn.Module.__init__(self)
        self.activation, self.first, self.member = whole.activation, whole.first, etp
        _, width, D = whole.w2.shape
        sections = [width] * (2 if whole.activation == "swiglu" else 1)
        self.cuts = {"w1": cut_evenly(sum(sections), 2, etp, "columns of an expert", sections),
                     "b1": cut_evenly(sum(sections), 1, etp, "columns of an expert", sections),
                     "w2": cut_evenly(width, 1, etp, "columns of an expert"),
                     "b2": cut_evenly(D, 1, etp, "numbers of a token")}
        for name, cut in self.cuts.items():
            value = getattr(whole, name)  # biases may be None
            self.register_parameter(name, value if value is None else nn.Parameter(cut.take(value.detach(), etp),
                                                                                   value.requires_grad))
        self.train(whole.training)

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """rows (M_r, D), by expert, counts of them -> (M_r, D)."""
        me = self.member
        # Counts go first: no rank knows how many rows the others have.
        everyones = all_rows(torch.tensor([counts], device="cpu"), [1] * me.n, me).tolist()  # [rank][expert]
        there = [sum(of_rank) for of_rank in everyones]
        rows = Pair.apply(rows, partial(all_rows, there=there, me=me), partial(sums_home, there=there, me=me))
        b2 = self.b2
        # With zeros around it: in the sum over the ranks each number of b2 counts once.
        if b2 is not None:
            before, after = me.r * b2.shape[1], (me.n - 1 - me.r) * b2.shape[1]
            b2 = F.pad(b2, (before, after))  # (E_r, D)
        rows = self.compute(by_expert(rows, everyones), [sum(of_expert) for of_expert in zip(*everyones)], b2)
        rows = by_rank(rows, everyones)
        return Pair.apply(rows, partial(sums_home, there=there, me=me), partial(all_rows, there=there, me=me))


def all_rows(rows: Tensor, there: list[int], me: Member) -> Tensor:
    """The rows of all ranks, in rank order: there[j] of rank j."""
    return all_to_all_rows(rows.repeat(me.n, 1), [len(rows)] * me.n, there, me)


def sums_home(rows: Tensor, there: list[int], me: Member) -> Tensor:
    """All ranks' `rows`, each a summand, as sums of this rank's own there[r] rows."""
    summands = all_to_all_rows(rows, there, [there[me.r]] * me.n, me)
    return summands.view(me.n, there[me.r], *rows.shape[1:]).sum(0)
