"""Chapter 6 on a rank: steps on a piece, hooks that scatter gradients and gather weights, and the bytes that are held.

    n  ranks, r this one      N  weights      M  bytes of all weights, and of all gradients
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib.grading.on_rank import (
    batch_loss,
    count_calls,
    data,
    gradients_of,
    kind,
    model_of,
    on_memory_of,
    plain,
    single,
)
from course_lib.runtime import MemoryLog, record_memory
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import TorchDispatchMode

SETTINGS = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.5}  # AdamW's own are others
LR = 1e-3  # an update is at most a thousandth of its weight: lost in bf16, where 1.0 is followed by 1.0078
PATIENCE_S = 1.0


def sharded_adamw(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.2: the weights, what is held while a gradient is computed, and of what is returned its kind and state."""
    weights = inputs["weights"].clone()
    stepped: WeakSet = WeakSet()  # all optimisers that took a step, whichever is returned
    together: list[int] = []  # bytes of their state after each

    def weigh_all(optimizer: Any, *_: Any) -> None:
        stepped.add(optimizer)
        together.append(sum(map(state_bytes, stepped)))

    with record_memory() as log, step_hook(weigh_all):
        looks = Looks(log, inputs["awaited"])
        gradient = looks.before_each(lambda at: coupled_gradient(inputs, at.detach()))
        returned, calls = count_calls(function, weights, gradient, inputs["num_steps"], SETTINGS,
                                      inputs["num_decayed"])
    state = state_bytes(returned)
    return {"weights": plain(weights), "calls": calls, "kind": type(returned).__name__, "held": looks.seen,
            "state": state, "of_all": max([state, *together])}


@contextmanager
def step_hook(hook: Callable) -> Iterator[None]:
    """Calls `hook` with each optimiser that takes a step."""
    handle = register_optimizer_step_post_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class Looks:
    """What was held at some points, [point, bytes] of each in `seen`, beside what is usual there."""

    def __init__(self, log: MemoryLog, awaited: float) -> None:
        self.log, self.awaited = log, awaited
        self.seen: list[list[Any]] = []

    def look(self, point: str, usual: int = 0) -> None:
        """See what is held now. Waits for gloo only up to the first point at which too much is held."""
        waits = all(held <= self.awaited for _, held in self.seen)
        self.seen.append([point, await_release(lambda: self.log.current - usual, self.awaited if waits else math.inf)])

    def before_each(self, gradient: Callable[[Tensor], Tensor], left: int = 0) -> Callable[[Tensor], Tensor]:
        """`gradient`, with a look before each of its calls, of which there is one in a step.

        left: bytes that a step may leave to the next one, in variables that still have their names.
        """
        def look_first(at: Tensor) -> Tensor:
            self.look(f"in step {len(self.seen)}", left * bool(self.seen))
            return gradient(at)

        return look_first


def coupled_gradient(inputs: dict[str, Any], weights: Tensor) -> Tensor:
    """The gradient (N,) of a loss that couples all weights, the same on every rank; or a number that is always the
    same.
    """
    if "gradient" in inputs:
        return torch.full_like(weights, inputs["gradient"])
    return inputs["curvature"] * (weights - inputs["target"]) + weights.roll(1) / 4


def state_bytes(optimizer: Any) -> int:
    """Bytes of all tensors in the optimizer's state."""
    return sum(tensor.nbytes for of_one in getattr(optimizer, "state", {}).values() for tensor in of_one.values()
               if isinstance(tensor, Tensor))


def scattered_gradients(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.3: the pieces after backward, each .grad that is left, the most bytes of .grad at once, and all in the end.

    `held`: the bytes after each gradient's hooks, beside those of a backward that throws gradients away.
    """

    def backward(
        function: Callable, beside: Iterator[int], awaited: float) -> tuple[Any, nn.Module, int, list[Any], int]:
        model = model_of(inputs)
        with record_memory() as log:
            looks = Looks(log, awaited)
            returned, sums = function(model), sum_gradients(model)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(
                        lambda _: looks.look(f"after gradient {len(looks.seen)} of backward", next(beside, 0)))
            batch_loss(model, [each.clone() for each in inputs["batches"][0]]).backward()
            held = await_release(lambda: log.current, inputs["awaited"])
        return returned, model, max(sums, default=0), looks.seen, held

    _, _, _, usual, _ = backward(throw_gradients_away, repeat(0), math.inf)
    (returned, model, whole, looks, held), calls = count_calls(
        backward, function, iter([now for _, now in usual]), inputs["awaited_in_backward"])
    pieces = {str(name): plain(piece) for name, piece in returned.items()} if isinstance(returned, dict) else {}
    left = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    return {"pieces": pieces, "left": left, "at_once": whole, "held": held, "calls": calls,
            "in_backward": looks}


def throw_gradients_away(model: nn.Module) -> None:
    """Forget each gradient as soon as it is complete: what is then still held is not .grad."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))


def sum_gradients(model: nn.Module) -> list[int]:
    """A list that gets the bytes of all .grad together, whenever one is complete and hooks made before have run."""
    parameters, sums = [each for each in model.parameters() if each.requires_grad], []
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(
            lambda _: sums.append(sum(each.grad.nbytes for each in parameters if each.grad is not None)))
    return sums


def gathered_on_use(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.4: output and gradients of one step, after `function` has seen each linear layer, and the bytes of weights.

    `pieces`: what was returned, by the parameter's name; `later`: the output when these pieces were doubled.
    """
    seen: list[Any] = []

    def step(model: nn.Module, see: Callable, look: Callable) -> dict[str, Any]:
        names, returned = {parameter: name for name, parameter in model.named_parameters()}, {}
        for layer in model:
            if isinstance(layer, nn.Linear):
                own = see(layer)
                returned |= own if isinstance(own, dict) else {}
        seen[:] = [model, {names[key]: piece for key, piece in returned.items()
                           if isinstance(key, nn.Parameter) and key in names and isinstance(piece, Tensor)}]
        look("before the first forward pass")
        x, y = (each.clone() for each in inputs["batches"][0])
        output = model(x.requires_grad_())  # as in the middle of a model
        look("after the forward pass")
        nn.functional.mse_loss(output, y).backward()
        return {"output": plain(output), "gradients": gradients_of(model)}

    answer, weighed = weigh(inputs, step, function, lambda layer: None)
    model, pieces = seen
    kept = {name: piece_data(piece) for name, piece in pieces.items()}
    later = None
    if kept and all(isinstance(piece, Tensor) for piece in kept.values()):
        with torch.no_grad():
            for piece in pieces.values():
                piece.mul_(2)
            later = model(inputs["batches"][0][0].clone())
    return {**answer, **weighed, "pieces": kept, "later": plain(later)}


def zero_3_training(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.7: the pieces that the optimiser steps, the bytes of its state, of whole gradients, and of all that is held."""
    def train(model: nn.Module, steps: Callable, look: Callable) -> Any:
        return steps(model, [(x.clone().requires_grad_(), y.clone()) for x, y in inputs["batches"]], SETTINGS)

    optimizer, weighed = weigh(inputs, train, function, backward_only)
    groups = getattr(optimizer, "param_groups", None)
    own = [piece_data(piece) for group in groups for piece in group["params"]] if groups else plain(optimizer)
    return {"pieces": own, "state": state_bytes(optimizer), **weighed}


def backward_only(model: nn.Module, batches: list[Any], settings: dict[str, Any]) -> None:
    """As much of training as makes the same activations: what else is held is the weights."""
    throw_gradients_away(model)
    for batch in batches:
        batch_loss(model, batch).backward()


def weigh(inputs: dict[str, Any], work: Callable, function: Callable, usual: Callable) -> tuple[Any, dict[str, Any]]:
    """What work(model, function, look) returns; its calls, and the bytes held where it looks, between layers and last.

    Not counted are activations: what is held with `usual` in place of `function`, beside M bytes of whole weights.
    at_once: the most bytes of .grad at the moments at which one is complete.
    """
    def run(function: Callable, activations: Iterator[int], awaited: float) -> tuple[Any, list[Any], int]:
        model = model_of(inputs)
        sums = sum_gradients(model)
        with record_memory(parameters=list(model.parameters())) as log, NothingPastItsStorage():
            looks = Looks(log, awaited)

            def look(point: str, *_: Any) -> None:
                beside = next(activations, None)
                if beside is not None:
                    looks.look(point, beside)

            for index, layer in enumerate(model):
                if not isinstance(layer, nn.Linear):
                    layer.register_forward_hook(partial(look, f"in forward, after layer {index - 1}"))
                    layer.register_full_backward_pre_hook(partial(look, f"in backward, after layer {index + 1}"))
            returned = work(model, function, look)
            look("in the end")
        return returned, looks.seen, max(sums, default=0)

    M = sum(weight.nbytes for weight in inputs["weights"].values())
    _, looks, _ = run(usual, repeat(0), math.inf)
    (returned, held, whole), calls = count_calls(run, function, iter([now - M for _, now in looks]), inputs["awaited"])
    return returned, {"calls": calls, "held": held, "at_once": whole}


def missing_bytes(tensor: Tensor) -> int:
    """How many bytes its storage has too few for it: all where it was emptied."""
    ours = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return max(0, tensor.nbytes - tensor.untyped_storage().nbytes()) if ours else 0


def piece_data(piece: Any) -> Any:
    """`piece` as data; words where it has no memory, which nobody may read."""
    return "a tensor whose storage is empty" if isinstance(piece, Tensor) and missing_bytes(piece) else plain(piece)


class NothingPastItsStorage(TorchDispatchMode):
    """ValueError where a tensor is written whose storage is too small for it: torch writes past the storage's end."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parameters, kwargs = func._schema.arguments, kwargs or {}
        given = {**dict(zip((each.name for each in parameters), args)), **kwargs}
        for tensor in tensors_in([given.get(each.name) for each in parameters
                                  if each.alias_info and each.alias_info.is_write]):
            if missing_bytes(tensor):
                raise ValueError(f"a storage of {tensor.untyped_storage().nbytes()} bytes is too small for "
                                 f"{tensor.numel()} numbers of {tensor.itemsize} bytes")
        return func(*args, **kwargs)


def await_release(held: Callable[[], int], awaited: float) -> int:
    """The bytes held as soon as they are at most `awaited`, or after PATIENCE_S.

    gloo's thread lets go of a message a moment after it has arrived.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (now := held()) > awaited and time.monotonic() < deadline:
        time.sleep(0.001)
    return now


def master_steps(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.5: the weights and the master weights, and what is held while a gradient is computed."""
    weights = inputs["weights"].clone()
    with record_memory() as log:
        looks = Looks(log, inputs["awaited"])
        # A whole gradient in fp32, and all weights in bf16, as a list of pieces and as one tensor: no master weights.
        gradient = looks.before_each(partial(far_gradient, inputs), 8 * len(weights))
        master, calls = count_calls(function, weights, gradient, inputs["num_steps"], LR)
    return {"weights": plain(weights), "master": plain(master), "held": looks.seen, "calls": calls}


def far_gradient(inputs: dict[str, Any], weights: Tensor) -> Tensor:
    """A gradient (N,) in bf16 that couples each weight with one of another rank's piece; or a number that is always the
    same.
    """
    constant = inputs.get("gradient")
    return weights + weights.roll(len(weights) // 2) if constant is None else torch.full_like(weights, constant)


def clip_over_shards(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """6.6: the norm, and the pieces afterwards."""
    returned, calls = count_calls(function, on_memory_of(inputs["pieces"]), inputs["max_norm"])
    norm = data(single(returned))
    return {"norm": float(norm) if isinstance(norm, int | float) else norm if isinstance(norm, str) else kind(returned),
            "pieces": [plain(piece) for piece in inputs["pieces"]], "calls": calls}
