"""parallelize: a whole model cut over the ranks of a group. It takes and returns what it did, and computes the same.

    one block, t ranks, tokens (B, T)          forward                         backward
    attention, MLP                             an all-reduce of B T D each     an all-reduce of B T D each
    with sequence_parallel, instead of them    all-gather, reduce-scatter      all-gather, reduce-scatter

Source: Shoeybi et al. 2019; Korthikanti et al. 2022; torch's `parallelize_module`, whose plans say the same of modules.
"""

from functools import partial

from torch import Tensor, nn

from course_lib.collectives import all_gather_along, copy_to_group, gather_from_group, scatter_to_group
from course_lib.groups.exchange import require_same_module
from course_lib.groups.gradients import broadcast
from course_lib.groups.membership import Group, Member, member, require_kind
from course_lib.reference import GPT, Block
from course_lib.tensor_parallel import surgery
from course_lib.tensor_parallel.full_state import share_parameters
from course_lib.tensor_parallel.linear import CutModule
from course_lib.tensor_parallel.surgery import (
    GPT_PLAN,
    LLAMA_PLAN,
    Apart,
    Column,
    Entry,
    Plan,
    Region,
    Row,
    Tokenwise,
    Vocabulary,
    agree_on_random_numbers,
    draw_alone,
    find_style,
)
from course_lib.tensor_parallel.vocabulary import vocab_parallel_cross_entropy

Styles = dict[str, object]  # name of a module -> what becomes of it


class TensorParallelGPT(GPT):
    """What parallelize makes of a GPT: with targets nobody gathers the logits, and each rank returns its own part."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """tokens, targets (B, T) -> logits (B, T, V) and None; with targets logits (B, T, V/t) and the mean loss."""
        logits, _ = super().forward(tokens)  # (B, T, V/t)
        me = self.head.member
        if targets is None:
            return gather_from_group(logits, -1, me), None
        return logits, vocab_parallel_cross_entropy(logits, targets, me)


def parallelize(model: nn.Module, group: Group = None, sequence_parallel: bool = False, *, plan: Plan | None = None,
                gather_again: bool = False) -> nn.Module:
    """Cut `model` in place, on all ranks of `group`, and return it. Place 0's parameters and buffers are used.

    plan: see surgery.py; by default reference.GPT's, or the names of Hugging Face's Llama. sequence_parallel: from the
    first block to the read-out each rank computes on T/t tokens of every row where it holds no part of a matrix.
    gather_again: see ColumnParallelLinear; columns in a Region gather together, once, and keep it. An optimiser is made
    afterwards: parameters are new.

    ValueError for what t does not divide, and for parameters of which the plan does not say what they see.
    """
    me = member(group)
    styles = styles_of(model, plan)
    require_same_module(model, me)
    apart = {p for name, style in styles.items() if isinstance(style, Apart)
             for p in model.get_submodule(name).parameters()}
    broadcast([*(p for p in model.parameters() if p not in apart), *model.buffers()], me)
    if me.n > 1:
        # Whole tensors lie on every rank: a dropout mask that differs would make copies differ.
        agree_on_random_numbers(me)
    made, attentions = {}, {}
    for name, style in styles.items():
        if isinstance(style, (Column, Row, Vocabulary)):
            module, around = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
            in_region = bool(regions_around(name, styles))
            made[module] = surgery.cut_layer(module, style, around, in_region, me, sequence_parallel=sequence_parallel,
                                             gather_again=gather_again)
            if isinstance(style, Column) and style.heads:
                attentions[around] = True
    # Everything is looked at before anything is swapped: a model that is refused stays as it was.
    seen = find_dealt_out(model, styles) if sequence_parallel else set()
    require_clear(model, styles, seen)
    surgery.tie_again(made, model)
    surgery.swap(model, made)
    for attention in attentions:
        surgery.divide_heads(attention, me)
    connect(model, styles, seen, sequence_parallel, me)
    for module in model.modules():
        if type(module) is GPT:
            # The loss needs this rank's logits only: whoever wants all of them gathers them in
            # TensorParallelGPT.forward.
            module.__class__, module.head.gather_output = TensorParallelGPT, False
    return model


def styles_of(model: nn.Module, plan: Plan | None) -> Styles:
    """What becomes of each module, by name. ValueError where there is nothing to do, or nothing left to do."""
    require_kind(model, name="model")
    if any(isinstance(module, CutModule) for module in model.modules()):
        raise ValueError(f"this {type(model).__name__} has tensor-parallel layers already: expected an unsplit one")
    if plan is None:
        plan = GPT_PLAN if any(isinstance(module, (GPT, Block)) for module in model.modules()) else LLAMA_PLAN
    found = {name: find_style(plan, name) for name, _ in model.named_modules()}
    styles = {name: style for name, style in found.items() if style is not None}
    if not any(isinstance(style, (Column, Row, Vocabulary)) for style in styles.values()):
        names = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))]
        raise ValueError(f"the plan names no layer of this {type(model).__name__}, which has {names[:8]}: expected "
                         f"plan={{pattern of a name: what becomes of it}}, such as {list(plan)[:4]}")
    return styles


def regions_around(name: str, styles: Styles) -> list[Region]:
    """The regions of the plan that the module `name` lies in."""
    return [style for region, style in styles.items() if isinstance(style, Region) and name.startswith(f"{region}.")]


def find_dealt_out(model: nn.Module, styles: Styles) -> set[str]:
    """The names of the modules that see dealt-out tokens: those registered from the first block on."""
    names = [name for name, _ in model.named_modules()]
    entries = [names.index(name) for name, style in styles.items() if isinstance(style, Entry)]
    return set(names[min(entries, default=0):])


def require_clear(model: nn.Module, styles: Styles, seen: set[str]) -> None:
    """ValueError where whole parameters lie among parts, and nobody said what they compute on."""
    for name, module in model.named_modules():
        style, regions = styles.get(name), regions_around(name, styles)
        has_parameters = any(p is not None and p.requires_grad for p in module._parameters.values())
        if has_parameters and (name in seen or regions) and style is None:
            where = "its tokens are dealt out" if name in seen else "around it tensors are in parts"
            raise ValueError(f"{name or 'the model'} is a {type(module).__name__} with parameters that the plan does "
                             f"not name, and {where}: expected it there")
        if isinstance(module, nn.Dropout) and module.p and not seen and any(region.draws_alone for region in regions):
            raise ValueError(f"{name} may drop parts, or what all ranks have, which needs the same mask on all: "
                             "expected a plan without draws_alone around it, or the dropout outside of that")


def connect(model: nn.Module, styles: Styles, seen: set[str], sequence_parallel: bool, me: Member) -> None:
    """What lies between the layers in parts: tensors copied, dealt out and gathered, gradients and masks shared or not.
    """
    for name, module in model.named_modules():
        style, regions = styles.get(name), regions_around(name, styles)
        if isinstance(style, Region):
            surgery.change_input(module, partial(all_gather_along, dim=-2, group=me) if sequence_parallel else
                                 partial(copy_to_group, group=me))
        if isinstance(style, Region) and style.draws_alone or isinstance(module, nn.Dropout) and name in seen:
            draw_alone(module, me)
        if isinstance(style, Tokenwise) and (regions or name in seen) or isinstance(style, Row) and sequence_parallel:
            share_parameters(module, me)
    if sequence_parallel:
        entries = [name for name, style in styles.items() if isinstance(style, Entry)] or [""]
        for name in entries:
            surgery.change_input(model.get_submodule(name), partial(scatter_to_group, dim=-2, group=me))
        if not any(isinstance(style, Column) and style.last for style in styles.values()):
            surgery.change_output(model, partial(gather_from_group, dim=-2, group=me))

