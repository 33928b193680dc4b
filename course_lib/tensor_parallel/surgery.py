"""How modules are cut: a plan as data, layers in parts for whole ones, and random numbers that fit both.

A plan is {pattern of a module's name: what becomes of it}. A pattern is matched, as in a shell, with the name or with
its end after a dot: "mlp.input" is every block's. The first pattern that matches counts. What a model of another kind
needs is a dozen lines like GPT_PLAN's.

Random numbers: where all ranks hold the same tensor they must draw the same mask, where each holds a part, its own. The
ranks' streams go on alike, as those of one process would: replicated tensors need nothing else. Where a tensor is in
parts, each rank draws one number from the common stream, the same on all, and seeds a stream of its own with it and
with its rank; afterwards the common stream goes on. So everything still follows from the common stream, and whoever
restores that, as torch.utils.checkpoint does before it computes again, gets the same masks. Megatron-LM has a second
stream instead (`CudaRNGStatesTracker`), which a recomputation must restore, too.

All hooks find what they need in their own arguments, so that a copied model works.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.gradients import remember_replacement
from course_lib.groups.membership import Group, Member, member
from course_lib.runtime import device
from course_lib.runtime.torch_private import tree_map
from course_lib.tensor_parallel.cut import heads_per_rank, qkv_sections, require_whole_heads
from course_lib.tensor_parallel.linear import ColumnParallelLinear, CutModule, RowParallelLinear
from course_lib.tensor_parallel.vocabulary import VocabParallelEmbedding

SPECIAL = set("*?[")  # what means something else than itself in a pattern


@dataclass(frozen=True)
class Column:
    """A Linear -> ColumnParallelLinear.

    num_sections: equal ones after each other in its output, gate | up say. heads: "q", "kv" or "qkv", whose rows are
    heads of the module around it, which stay whole. gather_output: everyone gets all of it. last: the read-out, behind
    which tokens are dealt out no more.
    """

    num_sections: int = 1
    heads: str = ""
    gather_output: bool = False
    last: bool = False


@dataclass(frozen=True)
class Row:
    """A Linear -> RowParallelLinear."""


@dataclass(frozen=True)
class Vocabulary:
    """An Embedding -> VocabParallelEmbedding."""


@dataclass(frozen=True)
class Region:
    """A module whose first tensor goes into several column layers: it is copied to the group once, for all of them.

    draws_alone: the random numbers it draws are for parts, of attention's weights say.
    """

    draws_alone: bool = False


@dataclass(frozen=True)
class Tokenwise:
    """Computes on each token by itself, like a norm: under sequence_parallel on this rank's."""


@dataclass(frozen=True)
class Apart:
    """Has other numbers on other ranks, and adds up its gradients itself: experts."""


@dataclass(frozen=True)
class Entry:
    """Under sequence_parallel its input, and all that follows, is dealt out along T: the first block."""


Plan = Mapping[str, Column | Row | Vocabulary | Region | Tokenwise | Apart | Entry]

GPT_PLAN: Plan = {  # reference.GPT
    "embedding.token": Vocabulary(),
    "blocks.0": Entry(),
    "attention.qkv": Column(heads="qkv"),
    "attention.output": Row(),
    "mlp.input": Column(),
    "mlp.output": Row(),
    "*norm*": Tokenwise(),
    "head": Column(gather_output=True, last=True),
}

LLAMA_PLAN: Plan = {  # the names of Hugging Face's Llama, and of many others
    "embed_tokens": Vocabulary(),
    "layers.0": Entry(),
    "self_attn": Region(draws_alone=True),
    "q_proj": Column(heads="q"),
    "k_proj": Column(heads="kv"),
    "v_proj": Column(heads="kv"),
    "qkv_proj": Column(heads="qkv"),
    "o_proj": Row(),
    "mlp": Region(),
    "gate_proj": Column(),
    "up_proj": Column(),
    "gate_up_proj": Column(num_sections=2),
    "down_proj": Row(),
    "*norm*": Tokenwise(),
    "lm_head": Column(gather_output=True, last=True),
}


def find_style(plan: Plan, name: str) -> object | None:
    """What `plan` says about the module called `name`; None where it says nothing."""
    return next((style for pattern, style in plan.items() if matches(name, pattern)), None)


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern` matches the end of `name`, from a dot on: "attention.qkv" fits "blocks.0.attention.qkv"."""
    if not SPECIAL & set(pattern):  # a shell's patterns are compiled, a millisecond each
        return f".{name}".endswith(f".{pattern}")
    return fnmatchcase(f".{name}", f"*.{pattern}")


@contextmanager
def own_stream(group: Group = None) -> Iterator[None]:
    """Inside, this rank draws random numbers that no other rank of the group draws."""
    me, here = member(group), device()
    common = int(torch.randint(2**53, (), device="cpu"))  # the same on all ranks
    others = [] if here.type == "cpu" else [here]
    with torch.random.fork_rng(others, device_type=here.type if others else "cpu"):
        # From the common stream and the rank, so that a recomputation which restores that stream gets this mask again.
        seed_generators(common + me.r, here)
        yield


def seed_generators(number: int, here: torch.device) -> None:
    """Seed the generators of the CPU and of `here`."""
    torch.default_generator.manual_seed(number)
    if here.type != "cpu":
        torch.get_device_module(here).manual_seed(number)


def agree_on_random_numbers(group: Group = None) -> None:
    """From now on all ranks draw what place 0 draws. Collective."""
    me, here = member(group), device()
    _copy_state(torch.get_rng_state(), torch.set_rng_state, me)
    if here.type != "cpu":
        module = torch.get_device_module(here)
        _copy_state(module.get_rng_state(), module.set_rng_state, me)


def _copy_state(state: Tensor, set_state: Callable[[Tensor], None], me: Member) -> None:
    message = state.to(me.wire(state.device))
    dist.broadcast(message, group=me.group, group_src=0)
    if me.r > 0:
        set_state(message.to(state.device))


class OwnAttention:
    """`attend(q, k, v, dropout_p)` on this rank's heads, whose dropout mask is no other rank's."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor, float], Tensor], group: Group = None) -> None:
        self.attend, self.member = attend, member(group)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
        if not dropout_p:  # nothing is drawn, so the common stream stays where it is
            return self.attend(q, k, v, dropout_p)
        with own_stream(self.member):
            return self.attend(q, k, v, dropout_p)


def draw_alone(module: nn.Module, group: Group = None) -> None:
    """From now on what `module` draws in training is this rank's own."""
    me, entered = member(group), []

    def before(module: nn.Module, _: Any) -> None:
        if module.training and getattr(module, "p", 1):  # a Dropout with p = 0 draws nothing
            entered.append(own_stream(me))
            entered[-1].__enter__()

    def after(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(before)
    # Even where forward raises, as in a recomputation that has all it needs.
    module.register_forward_hook(after, always_call=True)


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
    """The new modules wherever the old ones are."""
    remember_replacement((parameter for old in made for parameter in old.parameters()), "parallelize")
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in made:
                parent._modules[name] = made[child]


def change_input(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """From now on `module` gets function(x) for the first tensor x among its arguments."""
    module.register_forward_pre_hook(lambda _, inputs, named: change_first(function, (inputs, named)), with_kwargs=True)


def change_output(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """From now on `module` returns function(y) for the first tensor y of what it returned."""
    module.register_forward_hook(lambda _, inputs, outputs: change_first(function, outputs))


def change_first(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """`values`, a tree, with function(x) instead of the first tensor in it."""
    is_done = False

    def change(value: Any) -> Any:
        nonlocal is_done
        if is_done or not isinstance(value, Tensor):
            return value
        is_done = True
        return function(value)

    return tree_map(change, values)
