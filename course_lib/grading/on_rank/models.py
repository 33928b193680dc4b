"""A small model in float64 whose gradients are looked at, on a rank.

    D  widths of the layers      B  rows of one rank's batch
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.on_rank.plain import plain

Gradients = dict[str, Any]  # by the parameter's name; None where there is none


def network(widths: Sequence[int], frozen: Sequence[str] = ()) -> nn.Sequential:
    """Linear layers with tanh between them, in float64; the parameters named in `frozen` do not learn."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model


class Turned(nn.Module):
    """A network whose layers are registered in another order than they are used: the last one first."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        for name, layer in reversed(list(network.named_children())):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """x through the layers, the last one first."""
        for layer in reversed(list(self.children())):
            x = layer(x)
        return x


def model_of(inputs: dict[str, Any]) -> nn.Module:
    """The model as it is before the step."""
    model = network(inputs["widths"], inputs["frozen"])
    model = Turned(model) if inputs.get("turned") else model
    model.load_state_dict(inputs["weights"])
    return model


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The mean over the batch, x (B, D_0) and y (B, D_last)."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def gradients_of(model: nn.Module) -> Gradients:
    """By name of a parameter, its gradient as a plain tensor."""
    return {name: plain(parameter.grad) for name, parameter in model.named_parameters()}
