"""Cut a model into stages: contiguous layers, each stage as near to the same cost as whole layers allow.

The slowest stage sets the pace of a pipeline, as the slowest station does on an assembly line. So the embedding and the
head are counted as well as the blocks.

    D hidden size      T tokens      V vocabulary
"""

import functools
from collections.abc import Sequence

from torch import Tensor, nn

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
