"""The state of a model in slices as if it were not cut, in torch's own form; and the other way."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_lib.groups.membership import Member
from course_lib.tensor_parallel.cut import Cut
from course_lib.tensor_parallel.norms import cut_modules


def cuts_by_name(model: nn.Module) -> dict[str, tuple[Cut, Member]]:
    """How each parameter of `model` that is in slices is cut."""
    cut_modules(model)
    return {f"{prefix}.{name}" if prefix else name: (cut, module.member)
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, cut in getattr(module, "cuts", {}).items()}


@torch.no_grad()
def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict that the unsplit model would have, on the host, on every rank. Collective.

    A tied parameter is gathered once, and is one tensor under all its names.
    """
    cuts, wholes, state = cuts_by_name(model), {}, {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            state[name] = value  # what a module's get_extra_state gave
            continue
        if value not in wholes:
            cut, me = cuts.get(name, (None, None))
            whole = value.detach() if cut is None else cut.join(value.detach(), me)
            wholes[value] = whole.to("cpu", copy=True)  # a copy, which the next step does not change
        state[name] = wholes[value]
    return state


@torch.no_grad()
def load_full_state_dict(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Take this rank's slices of an unsplit model's state_dict, which every rank has.

    ValueError for names or shapes of another model.
    """
    cuts, own = cuts_by_name(model), model.state_dict(keep_vars=True)
    if own.keys() != state_dict.keys():
        raise ValueError(f"the state has {sorted(state_dict.keys() - own.keys())} too many and lacks "
                         f"{sorted(own.keys() - state_dict.keys())}: expected the same model's, unsplit")
    for name, target in own.items():
        if isinstance(target, Tensor):
            whole, (cut, me) = state_dict[name].detach(), cuts.get(name, (None, None))
            expected = list(target.shape)
            if cut is not None:
                expected[cut.dim] *= me.n  # this rank has a t-th of it
            if list(whole.shape) != expected:
                raise ValueError(f"{name} has shape {list(whole.shape)}: expected {expected}, as the unsplit model's")
            target.copy_(whole if cut is None else cut.take(whole, me))
