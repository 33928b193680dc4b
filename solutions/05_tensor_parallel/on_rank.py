"""Chapter 5 on a rank: f and g, layers by columns and by rows, heads, the loss, the norm, a whole block.

    t  ranks      x  what comes in      dy  the gradient that comes back
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.on_rank import Leaves, count_calls, data, forth_and_back, on_memory_of, plain, single


def f_and_g(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.1: s = g(w (f(x) + x)), and backward from c s.

    f(x) + x gives both its terms the same gradient, and h is looked at afterwards: whoever writes into what came in is
    found out.
    """
    x, w = (inputs[name].clone().requires_grad_() for name in ("x", "w"))
    answer: dict[str, Any] = {}

    def there_and_back() -> None:
        pair = function()
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
            answer["f"] = plain(pair)
            return
        copied = apply_half(pair[0], x, "f")
        answer["f"] = plain(copied)
        h = w * (copied + x)
        s = apply_half(pair[1], h, "g")
        answer["g"], answer["h"] = plain(s), plain(h)
        if s.requires_grad:
            (inputs["c"] * s).sum().backward()
        answer["w"], answer["x"] = plain(w.grad), plain(x.grad)

    _, calls = count_calls(there_and_back)
    return {**answer, "calls": calls}


def apply_half(function: Callable, x: Tensor, name: str) -> Tensor:
    """f or g of x. TypeError in words for what returns no tensor."""
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        kind = function.__name__
        raise TypeError(f"{name} is the class {kind}, and calling a class makes an object of it: return {kind}.apply")
    y = function(x)
    if not isinstance(y, Tensor):
        what = "nothing (None)" if y is None else f"a {type(y).__name__}"
        raise TypeError(f"{name} returned {what}: expected a tensor. Does its forward end with `return`?")
    return y


def layer(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.2 and 5.3: a layer of x and its parameters, and backward from dy; flops: of its products, in both."""
    with FlopCounterMode(display=False) as counter:
        answer = forth_and_back(inputs, lambda leaves: function(*leaves.values()))
    return {**answer, "flops": counter.get_total_flops()}


def qkv_rows(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.4: this rank's rows; held: the bytes that they keep alive."""
    returned = function(inputs["weight"].clone(), *inputs["heads"])
    rows = plain(returned)
    return {"returned": rows, "held": returned.untyped_storage().nbytes() if isinstance(rows, Tensor) else 0}


def vocab_loss(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.5: loss and gradient, of this rank's logits."""
    returned, calls = count_calls(function, inputs["logits"].clone(), inputs["targets"].clone(), inputs["c"])
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        what = "nothing (None)" if returned is None else f"a {type(returned).__name__}"
        return {"loss": f"not two things but {what}", "gradient": None, "calls": calls}
    return {"loss": scalar(returned[0]), "gradient": plain(returned[1]), "calls": calls}


def gradient_norm(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.6: the norm, and what the three kinds of gradients are afterwards."""
    gradients = {kind: [gradient.clone() for gradient in inputs[kind]] for kind in ("sliced", "whole", "partial")}
    norm, calls = count_calls(function, *map(on_memory_of, gradients.values()))
    return {"norm": scalar(norm), **{kind: list(map(plain, each)) for kind, each in gradients.items()}, "calls": calls}


def scalar(value: Any) -> Any:
    """A number of any type, or a tensor of one, as float; of anything else what `plain` says."""
    found = data(single(value))
    return float(found) if type(found) in (int, float) and not isinstance(value, bool) else plain(value)


def block(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """5.7: a block of x and the weights by name, and backward from dy."""
    def call(leaves: Leaves) -> Any:
        weights = {name: leaf for name, leaf in leaves.items() if name != "x"}
        return function(leaves["x"], weights, inputs["head_dim"])

    return forth_and_back(inputs, call)
