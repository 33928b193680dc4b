"""The stages of a model: where it is cut, the backward pass of a stage in two parts, parameters that two stages hold.

The slowest stage sets the pace of a pipeline, as the slowest station does on an assembly line. So the embedding and the
head are counted as well as the blocks: contiguous layers, each stage as near to the same cost as whole layers allow.

    D hidden size      T tokens      V vocabulary

Backward in two parts, I for what the stage before waits for and W for what the optimiser needs (Qi et al. 2023, "Zero
Bubble Pipeline Parallelism", section 2):

    y = W x        I: dx = W^T dy        W: dW = dy x^T        both need dy, neither needs the other

Autograd's graph of a stage has an inner path, from the output to the input, and parameters hang beside it. A node of
the path with a parameter beside it is a `fork`. I runs the path alone, and keeps the gradient that reached each fork;
W runs from each fork into its parameters, and nowhere else. So each part does its own work and no more.

Of a parameter that lies on several ranks, such as an embedding that is the head as well, each copy has the gradient of
its own use. The parameter's is their sum, and with it all copies take the same step.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from course_lib.groups.gradients import is_missing, mark_missing, write_gradient
from course_lib.groups.membership import Member, sendable
from course_lib.reference import GPT
from course_lib.reference.gpt import Block

Layers = list[tuple[str, nn.Module]]  # in the order of the forward pass, with their names in the model


class Stage(nn.Module):
    """Some layers of a model, one after the other. Parameters have the names that they have in the model.

    `shared` names, for each parameter that another stage holds as well, the one parameter of the model that it is.
    """

    def __init__(self, layers: Layers, shared: dict[str, str]) -> None:
        super().__init__()
        self.layers, self.shared = tuple(layer for _, layer in layers), shared  # a tuple: not registered once more
        # Modules in between are made anew, so that each parameter has the name that it has in the model.
        for name, layer in layers:
            *path, last = name.split(".")
            parent: nn.Module = self
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent._modules[part]
            parent.add_module(last, layer)

    def forward(self, x: Tensor) -> Tensor:
        """x through the stage's layers: token numbers on the first stage, (B, T, D) on the others."""
        for layer in self.layers:
            x = layer(x)
        return x


def partition(model: nn.Module, num_stages: int, costs: Sequence[float] | None = None) -> list[Stage]:
    """The stages of `model`, a GPT or an nn.Sequential: the first takes its input, the last returns its output.

    The stages hold the model's own parameters, no copies, and their state_dicts together are the model's. The most
    expensive stage is as cheap as it can be; `costs` has a number for each layer, by default layer_costs(model).
    Raises ValueError for another kind of model, and for more stages than layers.
    """
    layers = layers_of(model)
    # Ranks cut the same model by the same costs, so all find the same stages without a message.
    costs = layer_costs(model) if costs is None else list(costs)
    if len(costs) != len(layers):
        raise ValueError(f"costs has {len(costs)} numbers for {len(layers)} layers: expected one for each of "
                         f"{', '.join(name for name, _ in layers)}")
    starts = [*balanced_cuts(costs, num_stages), len(layers)]
    parts = [layers[start:end] for start, end in zip(starts, starts[1:])]
    shared = shared_names(parts)
    return [Stage(part, names) for part, names in zip(parts, shared)]


def layers_of(model: nn.Module) -> Layers:
    """The layers of `model` with their names: what a cut can go between."""
    if isinstance(model, GPT):
        blocks = [(f"blocks.{index}", block) for index, block in enumerate(model.blocks)]
        return [("embedding", model.embedding), *blocks, ("norm", model.norm), ("head", model.head)]
    if isinstance(model, nn.Sequential):
        return list(model.named_children())
    raise ValueError(f"a {type(model).__name__} cannot be cut into stages: expected a GPT or an nn.Sequential, whose "
                     "layers follow each other")


def layer_costs(model: nn.Module) -> list[float]:
    """Multiplications for a token in the forward pass of each layer. The backward pass has twice as many everywhere.

    Every parameter counts once, as each element of a matrix does; attention, with T the longest input, 2 T D times
    beside them. An embedding only looks up a row: D for D numbers.
    """
    T = model.config.sequence_length if isinstance(model, GPT) else 0
    costs = []
    for _, layer in layers_of(model):
        cost = 2 * T * layer.mlp_norm.normalized_shape[0] if isinstance(layer, Block) else 0
        for module in layer.modules():
            for parameter in module.parameters(recurse=False):
                look_up = isinstance(module, nn.Embedding)
                cost += parameter.shape[-1] if look_up else parameter.numel()
        costs.append(float(cost))
    return costs


def balanced_cuts(costs: Sequence[float], num_stages: int) -> list[int]:
    """Where each stage starts. The largest sum is as small as it can be; among equals the squares decide.

    >>> balanced_cuts([1, 1, 1, 1, 3], num_stages=2)  # layers 0 to 2, and 3 to 4
    [0, 3]
    """
    if type(num_stages) is not int or not 1 <= num_stages <= len(costs):
        raise ValueError(f"num_stages={num_stages!r}: expected 1 to {len(costs)}, the number of layers, since every "
                         "stage needs one")

    @functools.cache
    def best(first: int, stages: int) -> tuple[float, float, tuple[int, ...]]:
        """(largest sum, sum of squares, starts) of the layers from `first`, cut into `stages`."""
        if stages == 1:
            total = sum(costs[first:])
            return total, total**2, (first,)
        options = []
        for cut in range(first + 1, len(costs) - stages + 2):
            mine = sum(costs[first:cut])
            largest, squares, starts = best(cut, stages - 1)
            # Squares break ties: among cuts with the same slowest stage, the one whose others are even.
            options.append((max(mine, largest), mine**2 + squares, (first, *starts)))
        return min(options)

    return list(best(0, num_stages)[2])


def shared_names(parts: Sequence[Layers]) -> list[dict[str, str]]:
    """For each part: its parameters that other parts hold, too, and the first name of each in the model."""
    names: list[list[tuple[str, nn.Parameter]]] = [
        [(f"{name}.{inner}", parameter) for name, layer in part
         for inner, parameter in layer.named_parameters(remove_duplicate=False)] for part in parts]
    first_name: dict[nn.Parameter, str] = {}
    parts_of: dict[nn.Parameter, set[int]] = {}
    for index, of_part in enumerate(names):
        for name, parameter in of_part:
            first_name.setdefault(parameter, name)
            parts_of.setdefault(parameter, set()).add(index)
    return [{name: first_name[parameter] for name, parameter in of_part if len(parts_of[parameter]) > 1}
            for of_part in names]


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


def shared_parameters(stages: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """This rank's parameters that other stages hold as well, by the name that all give them (see Stage.shared)."""
    return {common: stage.get_parameter(name) for stage in stages
            for name, common in getattr(stage, "shared", {}).items() if stage.get_parameter(name).requires_grad}


class SharedGradients:
    """The gradients of shared parameters in a step: `begin` before, `finish` after the last backward pass."""

    def __init__(self, mine: dict[str, nn.Parameter], everyones: list[list[str]], me: Member) -> None:
        self.me = me
        places = {name: [place for place, names in enumerate(everyones) if name in names] for name in mine}
        self.places = {name: places[name] for name in sorted(mine) if len(places[name]) > 1}
        self.parameters = mine

    def begin(self) -> None:
        """What earlier steps left in .grad is a sum already: put it aside."""
        self.before = {name: self.parameters[name].grad for name in self.places}
        for name in self.places:
            self.parameters[name].grad = None

    @torch.no_grad()
    def finish(self) -> None:
        """Sum the copies' gradients, in the same order on each rank, so that the copies stay equal to the bit."""
        for name, places in self.places.items():
            parameter = self.parameters[name]
            mine = torch.empty_like(parameter)
            # Every holder sends, also one whose copy got no gradient: the others wait for its part.
            if parameter.grad is None:
                mark_missing(mine)
            else:
                write_gradient(parameter.grad, mine)
            # Every rank adds in the order of places, its own in its turn: floating-point sums depend on the order.
            total = functools.reduce(torch.add, self._from_all(sendable(mine, self.me), places)).to(parameter.device)
            parameter.grad = self.before[name]
            if is_missing(total):
                continue
            if parameter.grad is None:
                parameter.grad = total
            else:
                parameter.grad += total

    def _from_all(self, mine: Tensor, places: list[int]) -> list[Tensor]:
        others = [place for place in places if place != self.me.r]
        arriving = {place: torch.empty_like(mine) for place in others}
        operations = [dist.P2POp(kind, tensor, group=self.me.group, group_peer=place) for place in others
                      for kind, tensor in ((dist.irecv, arriving[place]), (dist.isend, mine))]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return [arriving.get(place, mine) for place in places]
