"""What parallelize does to the modules of a model: layers in parts for whole ones, heads counted, tensors dealt out.

All hooks find what they need in their own arguments, so that a copied model works.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from course_lib.groups.membership import Member
from course_lib.groups.replaced import remember_replacement
from course_lib.runtime.torch_private import tree_map
from course_lib.tensor_parallel.cut import heads_per_rank, qkv_sections, require_whole_heads
from course_lib.tensor_parallel.embedding import VocabParallelEmbedding
from course_lib.tensor_parallel.linear import ColumnParallelLinear, CutModule, RowParallelLinear
from course_lib.tensor_parallel.plan import Column, Row
from course_lib.tensor_parallel.streams import OwnAttention

KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
# Numbers that an attention module keeps to shape its tensors by, as various libraries call them
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", *KV_HEADS, "hidden_size", "embed_dim")


def cut_layer(module: nn.Module, style: object, around: nn.Module, in_region: bool, me: Member, **sequence: bool
              ) -> CutModule:
    """The layer in parts for `module`, which lies in `around`, as `style` says."""
    if isinstance(style, Row):
        return RowParallelLinear.from_unsplit(module, me, sequence_parallel=sequence["sequence_parallel"])
    if not isinstance(style, Column):
        return VocabParallelEmbedding.from_unsplit(module, me)
    how: dict[str, Any] = {"gather_output": style.gather_output, "input_is_copied": in_region, **sequence}
    if style.heads:
        how |= cut_by_heads(module, style.heads, around, me)
    elif style.num_sections > 1:
        how["sections"] = [module.out_features // style.num_sections] * style.num_sections
    return ColumnParallelLinear.from_unsplit(module, me, **how)


def cut_by_heads(linear: nn.Linear, heads: str, attention: nn.Module, me: Member) -> dict[str, Any]:
    """sections and unit of a matrix whose rows are heads of `attention`. ValueError where t does not divide them."""
    head_dim = head_dim_of(linear, heads, attention)
    rows = linear.out_features // head_dim
    if heads != "qkv":
        require_whole_heads(rows, "heads" if heads == "q" else "key and value heads", me)
        return {"unit": head_dim}
    # Without a word of its own the module has as many heads of k and of v as of q.
    num_kv_heads = next((getattr(attention, name) for name in KV_HEADS if hasattr(attention, name)), rows // 3)
    num_heads = rows - 2 * num_kv_heads
    heads_per_rank(num_heads, num_kv_heads, me)
    return {"sections": qkv_sections(num_heads, num_kv_heads, head_dim), "unit": head_dim}


def head_dim_of(linear: nn.Linear, heads: str, attention: nn.Module) -> int:
    """The width of one head of `attention`. ValueError where the module does not tell."""
    if hasattr(attention, "head_dim"):
        return attention.head_dim
    names = KV_HEADS if heads == "kv" else COUNTS[:4]
    count = next((getattr(attention, name) for name in names if hasattr(attention, name)), None)
    if heads == "qkv" or count is None:
        raise ValueError(f"this {type(attention).__name__} does not say how large a head is: expected an attribute "
                         "head_dim")
    return linear.out_features // count


def divide_heads(attention: nn.Module, me: Member) -> None:
    """`attention` has a part of the heads from now on, and says so where it keeps numbers of them."""
    for name in COUNTS:  # its forward shapes q, k and v by them
        if isinstance(getattr(attention, name, None), int):
            setattr(attention, name, getattr(attention, name) // me.n)
    if callable(getattr(attention, "attend", None)):
        # Each rank drops out scores of heads that nobody else has, so it draws a mask of its own.
        attention.attend = OwnAttention(attention.attend, me)


def tie_again(made: Mapping[nn.Module, CutModule], model: nn.Module) -> None:
    """Parameters that were one are one again. ValueError where they would be cut in different ways."""
    first: dict[nn.Parameter, tuple[CutModule, str]] = {}
    for old, new in made.items():
        for name in new.cuts:
            whole = old._parameters[name]
            if whole is None:
                continue
            other, name_there = first.setdefault(whole, (new, name))
            if other.cuts[name_there] != new.cuts[name]:
                raise ValueError(f"a tied parameter of shape {list(whole.shape)} would be cut in two ways: expected "
                                 "one way, or copies")
            # One parameter in two modules: two copies of equal slices would get half of the gradient each.
            new._parameters[name] = other._parameters[name_there]
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if module not in made and parameter in first:
                raise ValueError(f"{name} of a {type(module).__name__} is tied to a parameter that is cut: expected "
                                 "that module in the plan, too")


def swap(model: nn.Module, made: Mapping[nn.Module, CutModule]) -> None:
    """The new modules in all places of the old ones."""
    remember_replacement((parameter for old in made for parameter in old.parameters()), "parallelize")
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in made:
                parent._modules[name] = made[child]


def before(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """From now on `module` gets function(x) for the first tensor x among its arguments."""
    module.register_forward_pre_hook(lambda _, inputs, named: on_first(function, (inputs, named)), with_kwargs=True)


def behind(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """From now on `module` returns function(y) for the first tensor y of what it returned."""
    module.register_forward_hook(lambda _, inputs, outputs: on_first(function, outputs))


def on_first(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """`values`, a tree, with function(x) in the place of the first tensor in it."""
    is_done = False

    def change(value: Any) -> Any:
        nonlocal is_done
        if is_done or not isinstance(value, Tensor):
            return value
        is_done = True
        return function(value)

    return tree_map(change, values)
