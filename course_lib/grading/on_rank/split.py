"""Forward and backward of something that is cut, on a rank."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.on_rank.plain import count_calls, plain

Leaves = dict[str, Tensor]


def leaves_of(inputs: dict[str, Any]) -> Leaves:
    """The given tensors as leaves of their own, so that gradients can be read and inputs stay as they are."""
    return {name: tensor.clone().requires_grad_() for name, tensor in inputs["given"].items()}


def gradients_of(leaves: Leaves) -> dict[str, Any]:
    """By name, the gradient of each leaf as a plain tensor."""
    return {name: plain(leaf.grad) for name, leaf in leaves.items()}


def forth_and_back(inputs: dict[str, Any], call: Callable[[Leaves], Any]) -> dict[str, Any]:
    """What `call` returns, its gradients after backward from dy, and its messages."""
    leaves = leaves_of(inputs)

    def passes() -> Any:
        y = call(leaves)
        returned = plain(y)
        if isinstance(y, Tensor) and y.requires_grad and y.shape == inputs["dy"].shape:
            y.backward(inputs["dy"].clone())
        return returned

    returned, calls = count_calls(passes)
    return {"y": returned, "gradients": gradients_of(leaves), "calls": calls}
