"""A call of a function that keeps what went in, drops what autograd saved, and makes that again when backward asks.

Autograd hands every tensor that it saves to a pack hook, and keeps what the hook returns. Here that is an empty slot,
so the tensor is free as soon as the forward pass has no use for it. Backward hands the slot to the unpack hook: at the
first one the function runs once more, and the i-th tensor that it saves now goes into the i-th slot.

Source: the rules are those of torch.utils.checkpoint with use_reentrant=False.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.runtime.torch_private import backward_number, tree_flatten, tree_unflatten
from course_lib.sequence_parallel.surroundings import Surroundings


class TensorSlot:
    """In the place of a saved tensor: what it looked like, and itself, for each backward pass that has made it again.

    Only the graph holds it, so that what was made for a node that is gone is gone, too.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.look = look(tensor)
        self.tensors: dict[int, Tensor] = {}


class AllSlotsFilled(Exception):
    """Raised inside the second run: the rest of the function is not needed."""


class RepeatableCall:
    """One call of `function`: its arguments, and a slot for each tensor that it saved, in order."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
        self.function = function
        leaves, self.form = tree_flatten((args, kwargs))
        self.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.tensors_at = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[index] for index in self.tensors_at]
        # Autograd keeps them, so that whoever watches what it keeps (an outer recompute, an offloader) gets them, too.
        self.saved = SaveTensors.apply(torch.empty(0, device="cpu", requires_grad=True), *tensors).grad_fn
        self.surroundings = Surroundings(tensors)
        self.slots: list[weakref.ref[TensorSlot]] = []

    def pack(self, tensor: Tensor) -> TensorSlot:
        """Forward, the pack hook: autograd would keep `tensor`, and gets an empty slot."""
        slot = TensorSlot(tensor)
        self.slots.append(weakref.ref(slot))
        return slot

    def unpack(self, slot: TensorSlot) -> Tensor:
        """Backward, the unpack hook: autograd wants the tensor that `slot` stands for."""
        backward = backward_number()  # with retain_graph there are several, and each makes its own
        if backward not in slot.tensors:
            self.run_again(backward)
        return slot.tensors.pop(backward)  # free again as soon as this node has used it, before the others are

    def run_again(self, backward: int) -> None:
        """Call the function once more, and fill all slots for this backward pass."""
        num_filled = 0

        def fill(tensor: Tensor) -> Tensor:  # the pack hook of the second run
            nonlocal num_filled
            made = tensor.detach()  # without the graph of the second run, which nobody wants
            self.put(made, num_filled, backward)
            num_filled += 1
            if num_filled == len(self.slots):
                raise AllSlotsFilled  # what comes after the last saved tensor is not needed
            return made

        args, kwargs = self.arguments()
        hooks = saved_tensors_hooks(fill, lambda made: made)  # what a backward pass inside the function takes out
        # The surroundings of the first time, or dropout would draw another mask.
        with suppress(AllSlotsFilled), self.surroundings.restore(), torch.enable_grad(), hooks:
            self.function(*args, **kwargs)
        if num_filled < len(self.slots):
            raise ValueError(f"{name_of(self.function)} saved {len(self.slots)} tensors for the backward pass, and "
                             f"{num_filled} when it was run again: expected the same. Does it depend on anything that "
                             "has changed in between?")

    def put(self, tensor: Tensor, index: int, backward: int) -> None:
        """Put `tensor` into slot number `index`. ValueError where it looks other than the one of the first run."""
        slot = self.slots[index]()
        if slot is None:  # the graph let go of it: nobody will ask
            return
        if look(tensor) != slot.look:
            raise ValueError(f"{name_of(self.function)} saved {slot.look} as tensor {index} for the "
                             f"backward pass, and {look(tensor)} when it was run again: expected the same")
        slot.tensors[backward] = tensor

    def arguments(self) -> tuple[tuple, dict[str, Any]]:
        """What the function was called with: the tensors from autograd, all else from here."""
        leaves = list(self.others)
        for index, tensor in zip(self.tensors_at, self.saved.saved_tensors):
            leaves[index] = tensor
        return tree_unflatten(leaves, self.form)


class SaveTensors(torch.autograd.Function):
    """Nothing but a place in the graph where tensors are saved."""

    @staticmethod
    def forward(ctx: Any, nothing: Tensor, *tensors: Tensor) -> Tensor:
        """`nothing`, with `tensors` saved by autograd itself, which checks that nobody changes them before backward."""
        ctx.save_for_backward(*tensors)
        return nothing.clone()


def look(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    """What must be the same when a tensor is made again."""
    return tensor.shape, tensor.dtype, tensor.device


def name_of(function: Callable) -> str:
    """What an error calls the function."""
    return getattr(function, "__qualname__", type(function).__name__)
