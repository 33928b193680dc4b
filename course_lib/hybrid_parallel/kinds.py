"""Which gradients are added up where: a table, one row a kind of parameter.

    kind       for example                 backward itself sums over    then averaged over   ranks with the same numbers
    split      qkv.weight                  -                            dp, cp               dp, cp
    whole      position.weight             -                            dp, cp               dp, cp, tp
    sequence   norm.weight, row biases,    tp: their tokens are parts   dp, cp               dp, cp, tp
               router.weight
    experts    experts.w1                  ep, etp: tokens of all       edp                  edp

A parameter that lies on two stages, the embedding that is the head as well, is summed over those two before it is
averaged: it has "pp" in the third column besides. Everything that goes wrong with gradients in a mix of axes is a wrong
word in this table; and the last column says what the norm of all gradients counts once.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from course_lib.expert_parallel import MoELayer
from course_lib.groups.gradients import average_gradients
from course_lib.groups.membership import Member
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.tensor_parallel.linear import CutModule, RowParallelLinear
from course_lib.tensor_parallel.surgery import Plan, Tokenwise, find_style

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """How ranks come to the gradient of a parameter, and which ranks hold the same numbers of it (`copies`)."""

    name: str
    in_backward: Axes
    averaged: Axes
    copies: Axes


SPLIT = Kind("split", (), ("dp", "cp"), ("dp", "cp"))
WHOLE = Kind("whole", (), ("dp", "cp"), ("dp", "cp", "tp"))
SEQUENCE = Kind("sequence", ("tp",), ("dp", "cp"), ("dp", "cp", "tp"))
EXPERTS = Kind("experts", ("ep", "etp"), ("edp",), ("edp",))
KINDS = (SPLIT, WHOLE, SEQUENCE, EXPERTS)


def kinds_of(stage: nn.Module, plan: Plan, tp: int, sequence_parallel: bool, tied: Mapping[str, str]
             ) -> dict[str, Kind]:
    """The kind of each parameter of `stage`, by name. `tied`: those that another rank's stage has, too."""
    kind_of, experts = {}, expert_names(stage)
    # With or without sequence parallelism, each rank of tp has other tokens there: gradients of router and shared
    # experts are summands.
    in_layer = tuple(f"{name}." for name, module in stage.named_modules() if isinstance(module, MoELayer))
    for prefix, module in stage.named_modules(remove_duplicate=False):
        on_own_tokens = tp > 1 and prefix.startswith(in_layer) or sequence_parallel and (
            isinstance(module, RowParallelLinear) or isinstance(find_style(plan, prefix), Tokenwise))
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            full = f"{prefix}.{name}" if prefix else name
            if full in experts:
                kind = EXPERTS
            elif isinstance(module, CutModule) and name in module.cuts:
                kind = SPLIT
            else:
                kind = SEQUENCE if on_own_tokens else WHOLE
            if full in tied:  # the first and the last stage both hold it: its gradient is added up over pp, too
                kind = replace(kind, name=f"{kind.name}, tied", in_backward=(*kind.in_backward, "pp"))
            kind_of[full] = kind
    return kind_of


def expert_names(stage: nn.Module) -> set[str]:
    """The names of parameters that are dealt out over ep and etp: not routers', nor shared experts'."""
    return {f"{prefix}.experts.{name}" for prefix, module in stage.named_modules() if isinstance(module, MoELayer)
            for name, _ in module.experts.named_parameters()}


def reduce_gradients(kind_of: Mapping[nn.Parameter, Kind], member_of: Callable[..., Member]) -> None:
    """After backward: each .grad becomes that of the mean over the whole batch. Collective, one message a row of KINDS.

    member_of(*axes) is this rank's place in its group of `axes`: layout.member, or another one to see what goes wrong.
    """
    # In backward the sums along tp, ep and pp have been made already; what is left are the means over rows and tokens.
    # dict.fromkeys keeps the order of parameters, so that all ranks of a group call in the same order.
    for axes in dict.fromkeys(kind.averaged for kind in kind_of.values()):
        average_gradients([parameter for parameter, kind in kind_of.items() if kind.averaged == axes],
                          member_of(*axes))


def scale_gradients(experts: Iterable[nn.Parameter], layout: ParallelLayout) -> None:
    """From now on the gradients of `experts`, averaged over edp, are those of the mean over the whole batch.

    Backward's all-to-alls add up for an expert the tokens of ep*etp ranks. A mean over edp of these sums is the sum
    over the plane, divided by edp; it should be divided by dp*cp, as everything else's is. So gradients of experts are
    multiplied by edp / (dp*cp) = tp / (ep*etp) beforehand.
    """
    share = layout.tp / (layout.ep * layout.etp)
    for parameter in experts if share != 1 else ():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * share)


@functools.cache
def counts_here(kind: Kind, layout: ParallelLayout, rank: int, sharded: bool = False) -> bool:
    """Whether `rank` is the one, among those with the same numbers, that counts them.

    sharded: ZeRO has cut them over the ranks that average them, so that each of these has numbers of its own.
    """
    copies = [axis for axis in kind.copies if not (sharded and axis in kind.averaged)]
    # The lowest of them: any would do, if only all ranks say the same one.
    return not copies or layout.group_of(rank, *copies)[0] == rank


def table(kind_of: Mapping[str, Kind]) -> str:
    """The kinds of a model's parameters, as text: one line a kind, with the names of its first parameters."""
    lines = [f"{'kind':<14}{'backward sums':<15}{'averaged over':<15}{'same numbers':<15}parameters"]
    for kind in dict.fromkeys(kind_of.values()):
        names = [name for name, its in kind_of.items() if its == kind]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        lines.append(f"{kind.name:<14}{', '.join(kind.in_backward) or '-':<15}{', '.join(kind.averaged):<15}"
                     f"{', '.join(kind.copies):<15}{', '.join(names[:2])}{more}")
    return "\n".join(lines)
