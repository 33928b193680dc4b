"""Chapter 8 on a rank: gate, rows in blocks, dispatch, loss, placement, gradients of experts.

    N  tokens of D numbers, k experts each    E  experts    R  ranks    M  rows
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.on_rank import Leaves, count_calls, data, forth_and_back, plain, whole_tensor
from course_lib.runtime import record_memory

Inputs = dict[str, Any]


def gate(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """8.1: the weights of all E experts, whatever the order of a token's, and back from them."""
    def weights_of(leaves: Leaves) -> Tensor:
        pair = function(leaves["logits"], inputs["bias"].clone(), *inputs["numbers"])
        require_kind(pair, "(a tensor, a tensor)")
        return torch.zeros_like(leaves["logits"]).scatter_add(1, *pair)  # (N, E)

    return forth_and_back(inputs, weights_of)


def block_rows(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """8.2: rows, what back makes of results, gradients, and the most bytes held on either way."""
    seen = {}

    def there_and_back(leaves: Leaves) -> Any:
        pair, there = held_by(function, leaves["tokens"], inputs["experts"].clone(), leaves["weights"],
                              *inputs["numbers"])
        require_kind(pair, "(a tensor, a function)")
        combined, home = held_by(pair[1], results_of(pair[0]))
        seen.update(rows=plain(pair[0]), held=max(there, home))
        return combined

    answer = forth_and_back(inputs, there_and_back)
    return {**answer, **answer["gradients"], **seen}


def held_by(function: Callable, *arguments: Any) -> tuple[Any, int]:
    """What `function` returns, and the most bytes that it held on its way."""
    with record_memory() as log:
        before = log.current
        returned = function(*arguments)
    return returned, log.peak - before


def results_of(rows: Tensor) -> Tensor:
    """What the experts make of rows: at each place something else, and of empty rows too."""
    return torch.tanh(rows) * torch.arange(1, rows.numel() + 1).view_as(rows) + 1


def dispatch(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """8.3: what arrives at this rank, and what comes home to it."""
    answer = {}

    def there_and_back() -> None:
        three = function(inputs["tokens"].clone(), inputs["choices"].clone())
        require_kind(three, "(a tensor, a tensor, a function)")
        received, theirs, back = three
        answer.update(received=plain(received), theirs=whole_tensor(theirs, torch.uint8))
        fit = theirs.ndim == 2 and theirs.shape[:1] == received.shape[:1]
        answer["home"] = plain(back(results_of_experts(received, theirs) if fit else received))

    _, calls = count_calls(there_and_back)
    return {**answer, "calls": calls}


def results_of_experts(tokens: Tensor, theirs: Tensor) -> Tensor:
    """What a rank's experts make of (M, D) tokens together, each expert something else; theirs: (M, E/R)."""
    return tokens * (theirs.double() @ (torch.arange(theirs.shape[1]) + 2.0).double()).unsqueeze(1)


def kept(function: Callable, inputs: list[Any]) -> dict[str, Any]:
    """8.5: which rows are kept, of whatever says yes or no."""
    return {"returned": whole_tensor(function(*inputs), torch.bool)}


def balance_loss(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """8.4: the loss, and back from it."""
    return forth_and_back(inputs, lambda leaves: function(leaves["logits"], inputs["k"]))


def placement(function: Callable, inputs: Inputs) -> Any:
    """8.6: of each rank its experts."""
    return data(function([list(load) for load in inputs["loads"]], *inputs["slots"]))


def expert_gradients(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """8.7: the gradients that this rank holds afterwards. Where no token came to an expert, there was none before."""
    *experts, router = [torch.nn.Parameter(torch.ones_like(each)) for each in (*inputs["gradients"], inputs["router"])]
    for weight, gradient in zip(experts, inputs["gradients"]):
        weight.grad = gradient.clone() if gradient.any() else None
    router.grad = inputs["router"].clone()
    _, calls = count_calls(function, experts, router, inputs["num_tokens"], list(inputs["same"]))
    return {"experts": [plain(weight.grad) for weight in experts], "router": plain(router.grad), "calls": calls}


def kind_of(value: Any) -> str:
    """What was returned, in words: "a tensor", "(a tensor, a function)", "nothing (None)"."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(kind_of, value))})"
    kind = "tensor" if isinstance(value, Tensor) else "function" if callable(value) else type(value).__name__
    return "nothing (None)" if value is None else f"a {kind}"


def require_kind(returned: Any, expected: str) -> None:
    """TypeError unless kind_of(returned) is `expected`."""
    if kind_of(returned) != expected:
        raise TypeError(f"it returned {kind_of(returned)}: expected {expected}")
