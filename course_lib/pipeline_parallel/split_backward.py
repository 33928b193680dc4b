"""The backward pass of a stage in two parts: I for what the stage before waits for, W for what the optimiser needs.

    y = W x        I: dx = W^T dy        W: dW = dy x^T        both need dy, neither needs the other

Autograd's graph of a stage has an inner path, from the output to the input, and parameters hang beside it. A node of
the path with a parameter beside it is a `fork`. I runs the path alone, and keeps the gradient that reached each fork;
W runs from each fork into its parameters, and nowhere else. So each part does its own work and no more.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


@dataclass
class Fork:
    """A node of the inner path, the slots of it through which gradients come, and the parameters beside it."""

    node: Node
    slots: set[int]
    parameters: set[Tensor]


def backward_input(output: Tensor, gradient: Tensor | None, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """I: the gradient for `x`, a leaf, and a function that does W: adds to each parameter's .grad.

    `gradient` is that of `output`; None for a loss. No parameter's gradient is computed before the function is called,
    once. Until then it keeps what autograd saved.
    """
    if not output.requires_grad:  # it does not depend on x, nor on a parameter that is trained
        return torch.zeros_like(x), lambda: None
    # A stage that returns its input has no node between the two.
    forks = forks_between(output, x) if output is not x else []
    edges = [GradientEdge(fork.node, slot) for fork in forks for slot in sorted(fork.slots)]
    # Autograd hands out gradients inside the graph, too: those at the forks cost nothing, they pass there anyway.
    found = torch.autograd.grad(output, [x, *edges], gradient, retain_graph=bool(edges), allow_unused=True)
    at_slot = {(edge.node, edge.output_nr): grad for edge, grad in zip(edges, found[1:])}
    return torch.zeros_like(x) if found[0] is None else found[0], lambda: backward_weight(forks, at_slot)


def backward_weight(forks: list[Fork], at_slot: dict[tuple[Node, int], Tensor | None]) -> None:
    """W: from the forks into their parameters. `at_slot`: what I kept."""
    for together in sorted(sharing_parameters(forks), key=len, reverse=True):
        edges = [GradientEdge(fork.node, slot) for fork in together for slot in sorted(fork.slots)
                 if at_slot[fork.node, slot] is not None]
        if not edges:
            continue
        shared = len(together) > 1
        # Two forks with one parameter: a path leads from the later to the earlier one, which autograd would follow and
        # count twice. What arrives there is replaced by what belongs there. Such forks go first: the path is whole yet.
        handles = [fork.node.register_prehook(lambda arrived, fork=fork: tuple(
            at_slot.get((fork.node, slot), grad) for slot, grad in enumerate(arrived)
        )) for fork in together if shared]
        torch.autograd.backward(edges, [at_slot[edge.node, edge.output_nr] for edge in edges], retain_graph=shared,
                                inputs=list(set().union(*(fork.parameters for fork in together))))
        for handle in handles:
            handle.remove()
    # What autograd saved lives as long as somebody holds its nodes; the caller may keep this function.
    forks.clear()
    at_slot.clear()


def forks_between(output: Tensor, x: Tensor) -> list[Fork]:
    """The forks of the path from `output` to `x`. One walk over the graph, children before parents."""
    leaf = torch.autograd.graph.get_gradient_edge(x).node
    inner: dict[Node, bool] = {leaf: True}  # whether a node lies on the path
    beside: dict[Node, set[Tensor]] = {}  # the parameters that a node off the path leads to
    forks: dict[Node, Fork] = {}
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        children = [edge for edge in node.next_functions if edge[0] is not None]
        unseen = [child for child, _ in children if child not in inner]
        if unseen:
            stack += unseen
            continue
        stack.pop()
        if node in inner:  # it stood on the stack twice
            continue
        inner[node] = any(inner[child] for child, _ in children)
        parameters = set().union(*(beside[child] for child, _ in children if not inner[child]))
        if not children and hasattr(node, "variable"):  # the end of a branch: where a gradient is added to a leaf's
            parameters = {node.variable}
        if not inner[node]:
            beside[node] = parameters
        elif parameters:
            forks[node] = Fork(node, set(), parameters)
        for child, slot in children:
            if child in forks:
                forks[child].slots.add(slot)
    if output.grad_fn in forks:
        forks[output.grad_fn].slots.add(output.output_nr)
    return list(forks.values())


def sharing_parameters(forks: list[Fork]) -> list[list[Fork]]:
    """The forks, those with a parameter in common in one list."""
    lists: list[tuple[set[Tensor], list[Fork]]] = []
    for fork in forks:
        parameters, members, apart = set(fork.parameters), [fork], []
        for other_parameters, others in lists:
            if parameters.isdisjoint(other_parameters):
                apart.append((other_parameters, others))
            else:
                parameters, members = parameters | other_parameters, others + members
        lists = [*apart, (parameters, members)]
    return [members for _, members in lists]
