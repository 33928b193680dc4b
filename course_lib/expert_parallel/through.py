"""Tokens through experts on other ranks and back, in one piece or in several, so that rows travel while others compute.

    N tokens of this rank     k experts of a token     D hidden size     E experts     R ranks     C chunks

    one piece       |  dispatch  |    experts    |  combine  |
    three chunks    | dispatch 0 | dispatch 1 | combine 0, dispatch 2 | combine 1 | combine 2 |
                                 | experts 0  |       experts 1       | experts 2 |

Backward is the same pipeline: what came back goes there again, as gradients. A chunk costs its messages' latency and
smaller products, so chunks pay where sending takes about as long as computing.
Source: He et al. 2022, "FasterMoE"; DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.1 (DualPipe hides both all-to-alls).

All-to-all in two levels: a token crosses the slow wire once for each node that it needs, not once for each expert.

    n nodes of G ranks, R = n G     N tokens     k experts of a token     D hidden size

    1  to the rank in my place on each node that holds some of the token's experts      slow wire: one row for a node
    2  among the ranks of that node, to the ranks that hold them, and back              fast wires: through_experts
    3  back to where the token came from: one row, in which that node's experts are already added up

What adds up on the node needs the weights there, so they travel with the rows, and their gradients back. Routing with
top_groups bounds how many nodes a token needs. Source: DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.expert_parallel.dispatch import (
    by_expert,
    by_rank,
    exchange_counts,
    exchange_rows,
    permute,
    sent_rows,
    start_all_to_all_rows,
    tokens_per_expert,
    unpermute,
)
from course_lib.expert_parallel.experts import Experts
from course_lib.groups.membership import Group, Member, member
from course_lib.runtime import span


@dataclass(frozen=True)
class RowExchange:
    """Where the rows of one chunk go, and what comes from where: [rank][expert of mine]."""

    sent: list[int]
    counts: list[list[int]]

    @property
    def received(self) -> list[int]:
        """Rows that come from each rank."""
        return [sum(of_rank) for of_rank in self.counts]

    def compute(self, experts: Experts, rows: Tensor) -> Tensor:
        """The results of the experts here on `rows` (M, D), which came ordered by rank and are returned so."""
        rows_of_expert = [sum(of_expert) for of_expert in zip(*self.counts)]
        return by_rank(experts(by_expert(rows, self.counts), rows_of_expert), self.counts)


def through_experts(tokens: Tensor, experts: Tensor, weights: Tensor, kept: Tensor | None, num_experts: int,
                    compute: Experts, me: Member) -> Tensor:
    """Each token's experts' results, weighted and added up: (N, D) -> (N, D). experts, weights, kept: (N, k)."""
    rows, order = permute(tokens, experts, kept)  # (M, D), by expert, and so by rank
    # The host makes room for what arrives, so it has to know how much: here it waits for the device.
    here = tokens_per_expert(experts, num_experts, kept).cpu()  # (E,)
    dispatch = RowExchange(sent_rows(here, me), exchange_counts(here, me))
    with span("dispatch"):
        rows = exchange_rows(rows, dispatch.sent, dispatch.received, me)
    with span("experts"):
        rows = dispatch.compute(compute, rows)
    with span("combine"):
        rows = exchange_rows(rows, dispatch.received, dispatch.sent, me)
    # Weights here and not where the experts are: they would have to travel, and so would their gradients.
    return unpermute(rows, order, weights)


def through_experts_in_chunks(tokens: Tensor, experts: Tensor, weights: Tensor, kept: Tensor | None, num_experts: int,
                              compute: Experts, me: Member, num_chunks: int) -> Tensor:
    """The same as through_experts, the tokens in `num_chunks` pieces, on all ranks in as many."""
    masks = [None] * num_chunks if kept is None else kept.tensor_split(num_chunks)
    choices = experts.tensor_split(num_chunks)
    permuted = [permute(*piece) for piece in zip(tokens.tensor_split(num_chunks), choices, masks)]
    here = torch.stack([tokens_per_expert(chosen, num_experts, mask) for chosen, mask in zip(choices, masks)], 1).cpu()
    # Counts of all chunks before any row: else each chunk would wait for a message about itself.
    counts = torch.tensor(exchange_counts(here, me), dtype=torch.int64, device="cpu")  # (R, E_r, C), in one message
    dispatches = [RowExchange(sent_rows(sent, me), there.tolist())
                  for sent, there in zip(here.unbind(1), counts.unbind(-1))]
    rows = Overlapped.apply(compute, dispatches, me, *(rows for rows, _ in permuted), *compute.parameters())
    return torch.cat([unpermute(back, order, weight) for back, (_, order), weight
                      in zip(rows, permuted, weights.tensor_split(num_chunks))])


class Overlapped(torch.autograd.Function):
    """Rows of all chunks (M_c, D) -> what the experts make of them (M_c, D). Then come the experts' parameters."""

    @staticmethod
    def forward(ctx: Any, experts: Experts, dispatches: list[RowExchange], me: Member, *tensors: Tensor
                ) -> tuple[Tensor, ...]:
        """Each chunk through experts elsewhere and back, `tensors` being the chunks (M_i, D) and then the experts'
        parameters: a chunk travels while another computes.
        """
        ctx.dispatches, ctx.me, ctx.graphs = dispatches, me, []
        ctx.parameters = tensors[len(dispatches):]
        # In evaluation no graph is built: it would keep all activations.
        is_trained = any(ctx.needs_input_grad)

        def compute(chunk: int, rows: Tensor) -> Tensor:
            with torch.set_grad_enabled(is_trained):  # a small graph for each chunk, which backward takes up
                result = dispatches[chunk].compute(experts, rows.requires_grad_(is_trained))
            ctx.graphs.append((rows, result))
            return result.detach()

        return tuple(travel(tensors[:len(dispatches)], dispatches, compute, me))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The same way for gradients (M_i, D); those of the parameters are added up over the chunks."""
        trained = [parameter for parameter in ctx.parameters if parameter.requires_grad]
        totals = {parameter: torch.zeros_like(parameter) for parameter in trained}

        def compute(chunk: int, gradient: Tensor) -> Tensor:
            rows, result = ctx.graphs[chunk]
            of_rows, *found = torch.autograd.grad(result, [rows, *trained], gradient)
            ctx.graphs[chunk] = None  # what the chunk kept is free
            for parameter, part in zip(trained, found):
                totals[parameter] += part
            return of_rows

        return None, None, None, *travel(gradients, ctx.dispatches, compute, ctx.me), *map(totals.get, ctx.parameters)


def travel(rows: Sequence[Tensor], dispatches: Sequence[RowExchange], compute: Callable[[int, Tensor], Tensor],
           me: Member) -> list[Tensor]:
    """Send each chunk's rows, compute on what has come, send that back: chunk i+1 travels while chunk i computes."""
    # All ranks start their all-to-alls in the same order, chunk by chunk, as every collective wants it.
    arrive = start_all_to_all_rows(rows[0], dispatches[0].sent, dispatches[0].received, me)
    returning = []
    for chunk, dispatch in enumerate(dispatches):
        incoming = arrive()
        if chunk + 1 < len(dispatches):
            following = dispatches[chunk + 1]
            arrive = start_all_to_all_rows(rows[chunk + 1], following.sent, following.received, me)
        with span("experts", chunk=chunk):
            outgoing = compute(chunk, incoming)
        returning.append(start_all_to_all_rows(outgoing, dispatch.received, dispatch.sent, me))
    return [finish() for finish in returning]


Nodes = tuple[Group, Group]  # (the ranks of my node, the ranks in my place on every node)


def through_nodes(tokens: Tensor, experts: Tensor, weights: Tensor, kept: Tensor | None, num_experts: int,
                  compute: Experts, intra: Member, inter: Member) -> Tensor:
    """The same as through_experts over all R ranks. experts, weights, kept: (N, k); node i holds E/n, in order."""
    E_n = num_experts // inter.n
    if kept is not None:
        experts = experts.where(kept, -1)  # nobody's
    # Once for each node, however many of a token's experts are there: that is what crosses the slow wire.
    is_needed = torch.stack([(experts // E_n == node).any(-1) for node in range(inter.n)])  # (n, N)
    order = is_needed.nonzero()[:, 1]  # (M,): tokens, by the node that they go to
    here = is_needed.sum(1).cpu()
    sent, received = here.tolist(), [count for count, in exchange_counts(here, inter)]
    with span("to the nodes"):
        rows, chosen, scale = (exchange_rows(what.index_select(0, order), sent, received, inter)
                               for what in (tokens, experts, weights))
    # Numbers within this node; what is chosen elsewhere falls outside 0 to E_n and is masked.
    chosen = chosen - inter.r * E_n
    is_mine = (chosen >= 0) & (chosen < E_n)
    # Already added up on this node: one row goes back, however many of its experts a token used.
    added_up = through_experts(rows, chosen.where(is_mine, 0), scale, is_mine, E_n, compute, intra)
    with span("from the nodes"):
        back = exchange_rows(added_up, received, sent, inter)
    return tokens.new_zeros(tokens.shape, dtype=back.dtype).index_add(0, order, back)


def require_nodes(nodes: Nodes | None, num_experts: int, num_chunks: int, me: Member) -> tuple[Member, Member] | None:
    """`nodes` as members. ValueError unless they are the rows and columns of the group, each as it should be."""
    if num_chunks < 1 or nodes is not None and num_chunks > 1:
        raise ValueError(f"num_chunks={num_chunks}{' with nodes' if nodes else ''}: expected 1 or more, and 1 in two "
                         "levels")
    if nodes is None:
        return None
    intra, inter = map(member, nodes)
    if me.n != intra.n * inter.n or me.r != inter.r * intra.n + intra.r:
        raise ValueError(f"nodes: place {intra.r} of {intra.n} on node {inter.r} of {inter.n}, and place {me.r} of "
                         f"{me.n} in the group: expected place {intra.n} x node + place on the node")
    if num_experts % me.n:
        raise ValueError(f"{num_experts} experts on {me.n} ranks in two levels: expected a number that the ranks "
                         "divide")
    return intra, inter
