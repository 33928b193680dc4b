"""The trip of the rows: from tokens to the ranks that hold their experts, and back.

    N tokens of this rank     k experts of a token     D hidden size     E experts, E_r on this rank     R ranks
    M rows: N k, or fewer where some are dropped       counts   [rank][expert of mine]: rows that come from each rank

    tokens (N, D) -> permute -> rows (M, D) -> dispatch -> experts -> combine -> rows (M, D) -> unpermute -> (N, D)

A token with k experts becomes k rows, sorted by expert; unpermute adds them up again, each times its weight. Dispatch
is an all-to-all of as many rows as there are: nobody knows how many will come, so counts go first. Rows come sorted by
rank and then by expert; experts want them by expert.

In chunks, rows travel while others are computed. A chunk costs its messages' latency and smaller products, so chunks
pay where sending takes about as long as computing:

    one piece       |  dispatch  |    experts    |  combine  |
    three chunks    | dispatch 0 | dispatch 1 | combine 0, dispatch 2 | combine 1 | combine 2 |
                                 | experts 0  |       experts 1       | experts 2 |

Over n nodes of G ranks, a token crosses the slow wire once for each node that it needs, not once for each expert:

    1  to the rank in my place on each node that holds some of the token's experts      slow wire: one row for a node
    2  among the ranks of that node, to the ranks that hold them, and back              fast wires: through_experts
    3  back to where the token came from: one row, in which that node's experts are already added up

What adds up on the node needs the weights there, so they travel with the rows, and their gradients back. Routing with
top_groups bounds how many nodes a token needs.

Sources: Lepikhin et al. 2020, "GShard", whose all-to-all was padded to equal sizes; Gale et al. 2022, "MegaBlocks"; He
et al. 2022, "FasterMoE" (chunks); DeepSeek-AI 2024, "DeepSeek-V3", sections 3.2.1 (DualPipe hides both all-to-alls) and
3.2.2 (nodes).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.collectives.differentiable import Finish, Pair
from course_lib.costs.splitting import experts_per_rank
from course_lib.expert_parallel.experts import Experts
from course_lib.expert_parallel.routing import require_choice, tokens_per_expert
from course_lib.groups.exchange import wait_then
from course_lib.groups.membership import Group, Member, describe, member, member_or_single, sendable
from course_lib.runtime import span


class Choices(NamedTuple):
    """Which of `num_experts` experts see N tokens, how much each counts, and which of these choices are kept."""

    experts: Tensor  # (N, k) int64
    weights: Tensor  # (N, k)
    kept: Tensor | None  # (N, k) bool; None keeps all
    num_experts: int


def through_experts(tokens: Tensor, choices: Choices, compute: Experts, me: Member) -> Tensor:
    """Each token's experts' results, weighted and added up: (N, D) -> (N, D)."""
    experts, weights, kept, num_experts = choices
    order = order_by_expert(experts, kept)
    # The host makes room for what arrives, so it has to know how much: here it waits for the device, and nowhere else.
    trip = RowExchange(*exchange_counts(tokens_per_expert(experts, num_experts, kept), me))
    rows, order = take_rows(tokens, experts, order, trip.num_rows)  # (N, D) -> (M, D), by expert, and so by rank
    with span("dispatch"):
        rows = exchange_rows(rows, trip.sent, trip.received, me)  # (sum of received, D), by rank
    with span("experts"):
        rows = trip.compute(compute, rows)
    with span("combine"):
        rows = exchange_rows(rows, trip.received, trip.sent, me)  # (M, D), as they left
    # Weights here and not where the experts are: they would have to travel, and so would their gradients.
    return unpermute(rows, order, weights)


def permute(tokens: Tensor, experts: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(rows (M, D), order (M,)), sorted by expert, stable: rows[i] is tokens[order[i] // k].

    tokens (N, D), experts (N, k). order[i] is a position in experts.flatten(). kept (N, k) bool: without the others,
    M = kept.sum(); None keeps all, M = N k.

    >>> experts = torch.tensor([[2], [0], [2]])  # of three tokens, k = 1
    >>> rows, order = permute(torch.tensor([[10.0], [11.0], [12.0]]), experts)
    >>> rows.flatten().tolist(), order.tolist()
    ([11.0, 10.0, 12.0], [1, 0, 2])
    """
    require_choice(experts, len(tokens))
    num_rows = experts.numel() if kept is None else int(kept.sum())
    return take_rows(tokens, experts, order_by_expert(experts, kept), num_rows)


def order_by_expert(experts: Tensor, kept: Tensor | None) -> Tensor:
    """The positions (N k,) in experts.flatten(), sorted by expert; those that are not kept come last."""
    if kept is not None:
        experts = experts.masked_fill(~kept, torch.iinfo(experts.dtype).max)
    # Stable: rows of one expert stay in the order of tokens, so that they are added up in one order every time.
    return experts.flatten().argsort(stable=True)


def take_rows(tokens: Tensor, experts: Tensor, order: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """A row for each of the first `num_rows` choices in `order`, and that part of it."""
    order = order[:num_rows]
    return tokens.index_select(0, order // experts.shape[1]), order


def unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """tokens (N, D): token t is the sum of weights[t, slot] rows[i] over the i with order[i] = t k + slot.

    rows (M, D) and order (M,) as permute gives them, weights (N, k). A token of which nothing was kept is zero.
    """
    N, k = weights.shape
    if order.shape != rows.shape[:1]:
        raise ValueError(f"order {describe(order)} of rows {describe(rows)}: expected one number for each row")
    # Weights follow their rows: order[i] is the row's position among all choices.
    weighted = rows * weights.flatten().index_select(0, order).unsqueeze(-1).to(rows.dtype)  # (M, D)
    return rows.new_zeros(N, *rows.shape[1:]).index_add(0, order // k, weighted)  # (M, D) -> (N, D)


@dataclass(frozen=True)
class RowExchange:
    """Where the rows of one chunk go, and what comes from where: [rank][expert of mine]."""

    here: list[list[int]]  # [rank][expert of its]
    counts: list[list[int]]

    @property
    def sent(self) -> list[int]:
        """Rows that go to each rank."""
        return [sum(to_rank) for to_rank in self.here]

    @property
    def received(self) -> list[int]:
        """Rows that come from each rank."""
        return [sum(of_rank) for of_rank in self.counts]

    @property
    def num_rows(self) -> int:
        """M, of this rank."""
        return sum(self.sent)

    def compute(self, experts: Experts, rows: Tensor) -> Tensor:
        """The results of the experts here on `rows` (M, D), which came ordered by rank and are returned so."""
        rows_of_expert = [sum(of_expert) for of_expert in zip(*self.counts)]  # (R, E_r) -> (E_r,)
        return by_rank(experts(by_expert(rows, self.counts), rows_of_expert), self.counts)


def exchange_counts(counts: Tensor, me: Member) -> tuple[list, list]:
    """([rank][expert of its], [rank][expert of mine]), and further as `counts` (E, ...) is shaped: what goes to the
    experts of each rank, and what all ranks have for mine.

    As numbers of Python, since they say how much will travel: the one time that the host waits for the device.
    """
    num_experts = experts_per_rank(len(counts), me.n)  # of each rank
    outgoing = incoming = counts
    if me.n > 1:
        outgoing = sendable(counts, me)
        incoming = outgoing.new_empty(me.n * num_experts[me.r], *counts.shape[1:])
        # Counts before rows: a receiver that does not know how much comes cannot make room for it.
        dist.all_to_all_single(incoming, outgoing, [num_experts[me.r]] * me.n, num_experts, group=me.group)
    here, there = torch.cat([outgoing, incoming]).cpu().split([len(outgoing), len(incoming)])
    return ([part.tolist() for part in here.split(num_experts)],
            there.view(me.n, num_experts[me.r], *counts.shape[1:]).tolist())


def dispatch_splits(experts: Tensor, num_experts: int, group: Group = None, kept: Tensor | None = None
                    ) -> tuple[list[int], list[int]]:
    """(sent, received): rows that go to each rank and that come from each, of choices `experts` (N, k) where `kept`.

    Collective: counts travel, no rows.
    """
    me = member_or_single(group)
    trip = RowExchange(*exchange_counts(tokens_per_expert(experts, num_experts, kept), me))
    return trip.sent, trip.received


def exchange_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Tensor:
    """Send sent[j] of `rows` (M, ...) to rank j, and return those that come, received[j] from rank j.

    Differentiable: gradients take the same way back.
    """
    if me.n == 1:
        return rows
    return Pair.apply(rows, partial(all_to_all_rows, sent=sent, received=received, me=me),
                      partial(all_to_all_rows, sent=received, received=sent, me=me))


def all_to_all_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Tensor:
    """Send sent[j] of `rows` (sum of `sent`, D) to rank j. Gives (sum of `received`, D), by the rank they come from."""
    return start_all_to_all_rows(rows, sent, received, me)()


def start_all_to_all_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Finish:
    """all_to_all_rows, begun now; autograd does not see it. The function returned waits, and gives what has come."""
    # Not waited for: in chunks, another chunk's experts compute meanwhile.
    outgoing = sendable(rows, me)
    incoming = outgoing.new_empty(sum(received), *rows.shape[1:])
    work = dist.all_to_all_single(incoming, outgoing, received, sent, group=me.group, async_op=True)
    return wait_then(work, lambda: incoming.to(rows.device))


def by_expert(rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
    """Rows that lie by rank, and within a rank by expert, so that they lie by expert, and within it by rank."""
    # With one rank or one expert the rows lie in both orders at once.
    if len(counts) < 2 or len(counts[0]) < 2:
        return rows
    blocks = rows.split([count for of_rank in counts for count in of_rank])
    return torch.cat([block for e in range(len(counts[0])) for block in blocks[e::len(counts[0])]])


def by_rank(rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
    """Rows that lie by expert, back in the order of the ranks that they came from."""
    return by_expert(rows, list(zip(*counts)))  # the same, ranks and experts changing their parts


def through_experts_in_chunks(tokens: Tensor, choices: Choices, compute: Experts, me: Member, num_chunks: int
                              ) -> Tensor:
    """The same as through_experts, the tokens in `num_chunks` pieces, on all ranks in as many."""
    experts, weights, kept, num_experts = choices
    masks = [None] * num_chunks if kept is None else kept.tensor_split(num_chunks)
    chosen = experts.tensor_split(num_chunks)
    counts = torch.stack([tokens_per_expert(*piece) for piece in zip(chosen, [num_experts] * num_chunks, masks)], 1)
    # Counts of all chunks before any row: else each chunk would wait for a message about itself.
    here, there = exchange_counts(counts, me)  # [rank][expert][chunk], in one message
    trips = [RowExchange(*([[of_expert[chunk] for of_expert in of_rank] for of_rank in way] for way in (here, there)))
             for chunk in range(num_chunks)]
    permuted = [take_rows(some, which, order_by_expert(which, mask), trip.num_rows) for some, which, mask, trip
                in zip(tokens.tensor_split(num_chunks), chosen, masks, trips)]
    rows = Overlapped.apply(compute, trips, me, *(rows for rows, _ in permuted), *compute.parameters())
    return torch.cat([unpermute(back, order, weight) for back, (_, order), weight
                      in zip(rows, permuted, weights.tensor_split(num_chunks))])


class Overlapped(torch.autograd.Function):
    """Rows of all chunks (M_c, D) -> what the experts make of them (M_c, D). Then come the experts' parameters."""

    @staticmethod
    def forward(ctx: Any, experts: Experts, trips: list[RowExchange], me: Member, *tensors: Tensor
                ) -> tuple[Tensor, ...]:
        """Each chunk through experts elsewhere and back, `tensors` being the chunks (M_i, D) and then the experts'
        parameters: a chunk travels while another computes.
        """
        ctx.trips, ctx.me, ctx.graphs = trips, me, []
        ctx.parameters = tensors[len(trips):]
        # In evaluation no graph is built: it would keep all activations.
        is_trained = any(ctx.needs_input_grad)

        def compute(chunk: int, rows: Tensor) -> Tensor:
            with torch.set_grad_enabled(is_trained):  # a small graph for each chunk, which backward takes up
                result = trips[chunk].compute(experts, rows.requires_grad_(is_trained))
            ctx.graphs.append((rows, result))
            return result.detach()

        return tuple(travel(tensors[:len(trips)], trips, compute, me))

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

        return None, None, None, *travel(gradients, ctx.trips, compute, ctx.me), *map(totals.get, ctx.parameters)


def travel(rows: Sequence[Tensor], trips: Sequence[RowExchange], compute: Callable[[int, Tensor], Tensor],
           me: Member) -> list[Tensor]:
    """Send each chunk's rows, compute on what has come, send that back: chunk i+1 travels while chunk i computes."""
    # All ranks start their all-to-alls in the same order, chunk by chunk, as every collective wants it.
    arrive = start_all_to_all_rows(rows[0], trips[0].sent, trips[0].received, me)
    returning = []
    for chunk, trip in enumerate(trips):
        incoming = arrive()
        if chunk + 1 < len(trips):
            following = trips[chunk + 1]
            arrive = start_all_to_all_rows(rows[chunk + 1], following.sent, following.received, me)
        with span("experts", chunk=chunk):
            outgoing = compute(chunk, incoming)
        returning.append(start_all_to_all_rows(outgoing, trip.received, trip.sent, me))
    return [finish() for finish in returning]


Nodes = tuple[Group, Group]  # (the ranks of my node, the ranks in my place on every node)


def through_nodes(tokens: Tensor, choices: Choices, compute: Experts, intra: Member, inter: Member) -> Tensor:
    """The same as through_experts over all R ranks; node i holds E/n experts, in order."""
    experts, weights, kept, num_experts = choices
    E_n = num_experts // inter.n
    if kept is not None:
        experts = experts.where(kept, -1)  # nobody's
    # Once for each node, however many of a token's experts are there: that is what crosses the slow wire.
    is_needed = torch.stack([(experts // E_n == node).any(-1) for node in range(inter.n)])  # (n, N)
    trip = RowExchange(*exchange_counts(is_needed.sum(1), inter))  # of each node, as if it were one expert
    sent, received = trip.sent, trip.received
    # (M,): tokens, by the node that they go to; nonzero would wait for the device to say how many
    order = (~is_needed).flatten().argsort(stable=True)[:trip.num_rows] % max(1, len(tokens))
    with span("to the nodes"):
        rows, chosen, scale = (exchange_rows(what.index_select(0, order), sent, received, inter)
                               for what in (tokens, experts, weights))
    # Numbers within this node; what is chosen elsewhere falls outside 0 to E_n and is masked.
    chosen = chosen - inter.r * E_n
    is_mine = (chosen >= 0) & (chosen < E_n)
    # Already added up on this node: one row goes back, however many of its experts a token used.
    added_up = through_experts(rows, Choices(chosen.where(is_mine, 0), scale, is_mine, E_n), compute, intra)
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
