"""Recomputation: keep what goes into a layer, throw away what it kept for backward, and make that again when asked.

    recompute        chooses what is made again: the whole function, or only the core of attention
    RepeatableCall   how: a call whose saved tensors are made again
    Surroundings     with the random numbers, autocast and default device of the first time, or dropout would draw
                     another mask

Autograd hands every tensor that it saves to a pack hook, and keeps what the hook returns. Here that is an empty slot,
so the tensor is free as soon as the forward pass has no use for it. Backward hands the slot to the unpack hook: at the
first one the function runs once more, and the i-th tensor that it saves now goes into the i-th slot.

Sources: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", for the selective kind; the rules are those of
torch.utils.checkpoint with use_reentrant=False.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.runtime import device
from course_lib.runtime.torch_private import (
    DeviceContext,
    backward_number,
    function_modes,
    tree_flatten,
    tree_unflatten,
)

POLICIES = ("full", "selective")


def recompute(module_or_fn: Callable, policy: str = "full") -> Callable:
    """A function that does what `module_or_fn` does, and keeps only its arguments for the backward pass.

    policy "full": all of it is run again in backward. "selective": only the core of attention, which holds the T x T
    matrices: every `.attend` of the module and of those inside it, whatever calls it. `module_or_fn` is then a module,
    or a method of one: `block.forward = recompute(block.forward, "selective")`.

    It has to do the same again: random numbers, autocast and the default device are restored for it, all else is its
    own affair. Arguments of any kind, by keyword or inside lists and dicts, pass; calls may be nested. ValueError for
    another policy, or where there is no attention; in backward for a function that does not save the same again.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}")
    if not callable(module_or_fn):
        raise ValueError(f"module_or_fn={module_or_fn!r:.80}: expected a module or a function")
    if policy == "selective":
        find_cores(module_or_fn)  # now, so that a module without attention is refused here, not in its first step
    return RecomputedFunction(module_or_fn, policy)


@dataclass(frozen=True)
class RecomputedFunction:
    """What `recompute` returns: an object, so that a copy of a model has a copy of its modules in it."""

    function: Callable
    policy: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():  # no backward pass will come
            return self.function(*args, **kwargs)
        if self.policy == "selective":
            with recompute_cores(self.function):
                return self.function(*args, **kwargs)
        call = RepeatableCall(self.function, args, kwargs)
        with saved_tensors_hooks(call.pack, call.unpack):
            return self.function(*args, **kwargs)


def find_cores(module_or_fn: Callable) -> list[tuple[Any, str]]:
    """(owner, name of the attribute) of every attention's core. ValueError where there is none."""
    module = getattr(module_or_fn, "__self__", module_or_fn)
    inside = module.modules() if isinstance(module, nn.Module) else []
    owners = [each for each in inside if callable(getattr(each, "attend", None))]
    if not owners:
        raise ValueError(f"policy='selective' of {name_of(module_or_fn)}: expected a module, or a method of one, with "
                         "an attention inside it whose core is its `attend(q, k, v, ...)`; for any other function "
                         "use policy='full'")
    return [(each.attend, "forward") if isinstance(each.attend, nn.Module) else (each, "attend") for each in owners]


@contextmanager
def recompute_cores(module_or_fn: Callable) -> Iterator[None]:
    """Until the block ends, every attention's core keeps its arguments only."""
    cores = find_cores(module_or_fn)
    before = [(owner, name, owner.__dict__.get(name)) for owner, name in cores]
    try:
        for owner, name in cores:
            setattr(owner, name, RecomputedFunction(getattr(owner, name), "full"))
        yield
    finally:
        for owner, name, own in before:
            # What came from the class was no attribute of the object: none may be left there.
            delattr(owner, name) if own is None else setattr(owner, name, own)


class TensorSlot:
    """Instead of a saved tensor: what it looked like, and itself, for each backward pass that has made it again.

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
        # The result is kept and not its grad_fn alone: before torch 2.13 that lets go of all when its result is gone.
        self.saved = SaveTensors.apply(torch.empty(0, device="cpu", requires_grad=True), *tensors)
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
        for index, tensor in zip(self.tensors_at, self.saved.grad_fn.saved_tensors):
            leaves[index] = tensor
        return tree_unflatten(leaves, self.form)


class SaveTensors(torch.autograd.Function):
    """Nothing but a node of the graph where tensors are saved."""

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


CPU = torch.device("cpu")


class Surroundings:
    """As they are now, for the CPU, the devices of `tensors`, and the rank's own. `restore()` brings them back."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        devices = {tensor.device for tensor in tensors} | {device(), CPU}
        self.devices = [each for each in devices if each.type != "meta"]  # which draws nothing
        self.random = self._random()
        self.autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind),
                          torch.is_autocast_cache_enabled())
                         for kind in {each.type for each in self.devices} if torch.amp.is_autocast_available(kind)]
        self.default_device = default_device()

    @contextmanager
    def restore(self) -> Iterator[None]:
        """Until the block ends; then random numbers go on from where they were before it."""
        before = self._random()
        try:
            self._set_random(self.random)
            with ExitStack() as stack:
                for kind, enabled, dtype, cached in self.autocast:
                    if enabled or torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, dtype, enabled, cached))
                # Autograd's threads of a GPU have no default device, and one must not be entered twice.
                if self.default_device is not None and default_device() is not self.default_device:
                    stack.enter_context(self.default_device)
                yield
        finally:
            self._set_random(before)  # whoever draws next must not notice that something ran twice

    def _random(self) -> list[Tensor]:
        return [torch.get_rng_state() if each == CPU else torch.get_device_module(each).get_rng_state(each)
                for each in self.devices]

    def _set_random(self, states: Sequence[Tensor]) -> None:
        for each, state in zip(self.devices, states):
            if each == CPU:
                torch.set_rng_state(state)
            else:
                torch.get_device_module(each).set_rng_state(state, each)


def default_device() -> DeviceContext | None:
    """torch's default device of this thread, as the mode that it is; None where nobody has set one."""
    modes = reversed(function_modes())
    return next((mode for mode in modes if isinstance(mode, DeviceContext)), None)
