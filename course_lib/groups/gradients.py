"""Many tensors in one message, and gradients on their way into one.

    N  numbers in a message

A message costs alpha + beta M, and one for each tensor pays alpha again and again: `pack` and `unpack` put many into
one and take them out again, `cut_tensors` says which go together.

A parameter that no rank used has no gradient, and AdamW must leave it alone; one with a gradient of zeros decays. In a
sum over the ranks the two look alike. So a rank without a gradient sends minus zeros: whatever is added to them wins,
and only minus zeros add up to minus zeros. Everybody can see it in the sum, without a further message.

Each addition of 16-bit numbers rounds to 8 or 11 bits. `reduce_dtype` says in which dtype gradients travel and are
added, whatever their own is, on every backend; torch.float32 costs two bytes more for each number sent.

The norm of a gradient that no rank has as a whole is (sum of all |g|^p)^(1/p), its sum taken over the ranks.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_lib.costs.sharding import cut_buckets
from course_lib.groups.membership import Group, Member, member
from course_lib.runtime.torch_private import foreach_multiply, foreach_norm

LARGE_BYTES = 250 << 20  # a message where nothing is computed meanwhile; bounds the copy that pack makes
ZERO = torch.zeros((), device="cpu")  # a number to every device's operators: to add it takes no kernel that makes it

Shapes = Sequence[Sequence[int]]


def pack(tensors: Sequence[Tensor]) -> tuple[Tensor, list[torch.Size]]:
    """The numbers of all `tensors`, of one dtype and device, one after the other (N,), and their shapes."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors]), [tensor.shape for tensor in tensors]


def unpack(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Views of `flat` (N,) in these shapes, one after the other. What is left at its end is padding."""
    shapes = [torch.Size(shape) for shape in shapes]
    sizes = [shape.numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat[:sum(sizes)].split(sizes), shapes)]


def unpack_into(tensors: Iterable[Tensor], flat: Tensor) -> None:
    """Copy the parts of `flat` (N,) into the tensors that it was packed from."""
    tensors = list(tensors)
    for tensor, part in zip(tensors, unpack(flat, [tensor.shape for tensor in tensors])):
        tensor.copy_(part)


def cut_tensors(tensors: Iterable[Tensor], cap_bytes: float) -> list[list[Tensor]]:
    """Lists of one dtype and device and of at most `cap_bytes`, a larger tensor being alone in its.

    In the order in which they are full when the tensors arrive one by one. Empty tensors are in none.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
    # Kinds are cut apart from each other, then all messages are ordered by their last tensor: that is when each is
    # full.
    messages = [[indices[position] for position in some] for indices in kinds.values()
                for some in cut_buckets([tensors[index].nbytes for index in indices], cap_bytes)]
    return [[tensors[index] for index in indices] for indices in sorted(messages, key=max)]


def require_cap(bucket_cap_mb: float) -> None:
    """ValueError for what is no size of a bucket."""
    if isinstance(bucket_cap_mb, bool) or not (isinstance(bucket_cap_mb, (int, float)) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb={bucket_cap_mb!r}: expected a number of MiB above 0")


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: Group = None, cap_bytes: float = LARGE_BYTES) -> None:
    """Give every rank what place 0 holds: one message for each dtype and device, or every `cap_bytes` of it."""
    me = member(group)
    for some in cut_tensors(tensors, cap_bytes) if me.n > 1 else []:
        flat, _ = pack(some)
        dist.broadcast(flat, group=me.group, group_src=0)
        # Place 0 has them already.
        if me.r > 0:
            unpack_into(some, flat)


@torch.no_grad()
def add_up(tensors: Iterable[Tensor], group: Group = None, divide_by: int = 1) -> None:
    """Give every rank the sum over the ranks, in messages like those of `broadcast`.

    Each rank's share is divided before it is sent: a sum of n large numbers might not fit into 16 bits.
    """
    me = member(group)
    for some in cut_tensors(tensors, LARGE_BYTES):
        flat, _ = pack(some)
        if divide_by != 1:
            flat /= divide_by
        dist.all_reduce(flat, group=me.group)
        unpack_into(some, flat)


def when_complete(parameters: Iterable[nn.Parameter], method: Callable[[nn.Parameter], None]) -> None:
    """Autograd calls the bound `method` with each of `parameters` whose .grad is complete, while the method's object
    lives.

    Python's garbage collection does not look into the hooks of parameters: had they the method itself, the object, its
    parameters and its process group would hold each other for ever, and gloo's threads would outlive the interpreter.
    """
    weakly = weakref.WeakMethod(method)

    def hook(parameter: nn.Parameter) -> None:
        if (found := weakly()) is not None:
            found(parameter)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)


def require_reduce_dtype(reduce_dtype: Any) -> None:
    """ValueError for what gradients cannot be added in."""
    if reduce_dtype is not None and not (isinstance(reduce_dtype, torch.dtype) and reduce_dtype.is_floating_point):
        raise ValueError(f"reduce_dtype={reduce_dtype!r}: expected a dtype such as torch.float32, or None")


def write_gradient(gradient: Tensor, part: Tensor, factor: float = 1.0) -> None:
    """`gradient` times `factor` into `part`, every minus zero as a zero: one pass over it, like any copy.

    Rounded once, to the dtype of `part`.
    """
    if factor == 1.0:
        torch.add(gradient, 0.0, out=part)
        return
    if gradient.element_size() < part.element_size():
        gradient = gradient.to(part.dtype)  # first: the product would be rounded to the gradient's dtype
    if gradient.element_size() < 4 and math.frexp(factor)[0] != 0.5:
        torch.mul(gradient, factor, out=part).add_(0.0)  # the alpha below would be rounded to 16 bits, too
    else:
        torch.add(ZERO, gradient, alpha=factor, out=part)


def mark_missing(part: Tensor) -> None:
    """Minus zeros: "no gradient here"."""
    part.fill_(-0.0)


def is_missing(total: Tensor) -> bool:
    """Whether no rank had this gradient, a sum over all of them, or any piece of it."""
    return find_missing([total]) == [0]


def find_missing(totals: Sequence[Tensor]) -> list[int]:
    """The places of those of `totals`, of one device, that no rank had. Of a GPU two are asked for, however many."""
    found = [place for place, total in enumerate(totals) if total.numel()]
    # A first number decides nearly always, and is looked at before all of them.
    for numbers_of in (lambda total: total.reshape(-1)[:1], lambda total: total):
        marks = [numbers_of(totals[place]) for place in found]
        minus = [((each == 0) & each.signbit()).all() for each in marks]
        found = [place for place, is_so in zip(found, torch.stack(minus).tolist()) if is_so] if minus else []
    return found


class GradientBucket:
    """Memory for the gradients of `parameters`, of one dtype and device, and those in it that have come.

    It has the parameters' dtype, or `reduce_dtype`, in which they are added up then, and not their .grad.

    `gradient` (N,) is there from the first `take` to `free`, and a view of it for each parameter in `parts`; `missing`
    are the parameters that have brought none, `without` those that had none when the bucket left: only they can be
    missing in the sum. N may be more than they need: the rest is padding, zeros.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], num_elements: int | None = None,
                 reduce_dtype: torch.dtype | None = None) -> None:
        self.parameters = list(parameters)
        dtype = self.parameters[0].dtype
        self.reduce_dtype = reduce_dtype if reduce_dtype and dtype.is_floating_point else dtype
        self.num_used = sum(parameter.numel() for parameter in parameters)
        self.num_elements = self.num_used if num_elements is None else num_elements
        self.without: set[nn.Parameter] = set()
        self.free()

    def allocate(self) -> None:
        """New memory each time: a .grad that the reader kept from the last one stays what it was."""
        like = self.parameters[0]
        self.gradient = torch.empty(self.num_elements, dtype=self.reduce_dtype, device=like.device)  # (N,)
        # Padding is added up, too: what memory happened to hold might be a NaN.
        self.gradient[self.num_used:] = 0
        self.parts = dict(zip(self.parameters, unpack(self.gradient, [p.shape for p in self.parameters])))
        self.missing, self.without = set(self.parameters), set()

    def take(self, parameter: nn.Parameter, factor: float = 1.0) -> Tensor:
        """Move the gradient of `parameter` in, times `factor`, and return its part."""
        if self.gradient is None:
            self.allocate()
        part = self.parts[parameter]
        write_gradient(parameter.grad, part, factor)
        self.missing.discard(parameter)
        return part

    def mark_missing(self) -> set[nn.Parameter]:
        """No more gradients will come: minus zeros for those that are missing, which are returned."""
        if self.gradient is None:
            self.allocate()
        self.without = set(self.missing)
        for parameter in self.without:
            mark_missing(self.parts[parameter])
        self.missing.clear()
        return self.without

    def parts_as_gradients(self) -> dict[nn.Parameter, Tensor]:
        """`parts` in the dtype of the parameters: the very same, or one copy of all."""
        if self.gradient.dtype == self.parameters[0].dtype:
            return self.parts
        in_theirs = self.gradient.to(self.parameters[0].dtype)
        return dict(zip(self.parameters, unpack(in_theirs, [p.shape for p in self.parameters])))

    def free(self) -> None:
        """Let go of the memory; where .grad is a part of it, it lives on there."""
        self.gradient: Tensor | None = None
        self.parts: dict[nn.Parameter, Tensor] = {}
        self.missing = set(self.parameters)


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], group: Group = None, cap_bytes: float = LARGE_BYTES,
                      divide_by: int | None = None, reduce_dtype: torch.dtype | None = None) -> None:
    """After backward: each .grad becomes the average over the ranks. One message for each dtype, and `cap_bytes` of it.

    A rank without a gradient counts as one of zeros; where no rank has one, there is none. divide_by: the sum by this
    number, where backward has added up gradients of more ranks than there are in the group. reduce_dtype: what is added
    in, None for the gradients' own.
    """
    me = member(group)
    divide_by = me.n if divide_by is None else divide_by
    if me.n == 1:
        for parameter in parameters if divide_by != 1 else ():
            if parameter.grad is not None:
                parameter.grad /= divide_by
        return
    # Also parameters without a gradient here: a message must have the same numbers on all ranks.
    for some in cut_tensors([p for p in parameters if p.requires_grad], cap_bytes):
        bucket = GradientBucket(some, reduce_dtype=reduce_dtype)
        for parameter in some:
            if parameter.grad is not None:
                bucket.take(parameter, 1 / divide_by)
        without = bucket.mark_missing()
        dist.all_reduce(bucket.gradient, group=me.group)
        unused = missing_everywhere(without, [bucket])
        for parameter, part in bucket.parts_as_gradients().items():
            parameter.grad = None if parameter in unused else part


def missing_everywhere(without: set[nn.Parameter], buckets: Sequence[GradientBucket]) -> set[nn.Parameter]:
    """Of the parameters that this rank is `without` a gradient for, those that no rank has one for: the sum says so."""
    asked = [(p, bucket.parts[p]) for bucket in buckets for p in bucket.parameters if p in without]
    return {asked[place][0] for place in find_missing([part for _, part in asked])}


def require_dense(parameter: nn.Parameter, name: str) -> None:
    """ValueError for a gradient that cannot be averaged."""
    if parameter.grad.layout is not torch.strided:
        raise ValueError(f"{name} has a sparse gradient: expected a dense one, nn.Embedding(..., sparse=False)")
    if parameter.grad.requires_grad:
        raise ValueError(f"{name}: backward(create_graph=True): the averages would not belong to the graph. Expected "
                         "backward(), or torch.autograd.grad on the plain module")


def require_first(is_first: bool, name: str) -> None:
    """ValueError for a gradient of a parameter that has brought one in this backward pass."""
    if not is_first:
        raise ValueError(f"{name} got a second gradient in one backward pass, when the first was under way. Two "
                         "reentrant checkpoints that share a parameter do that: use checkpoint(use_reentrant=False)")


def total_norm(shards: Sequence[Tensor], replicated: Sequence[Tensor], norm_type: float, me: Member,
               device: torch.device) -> Tensor:
    """The norm over all ranks' `shards`, and over `replicated` gradients, which are the same everywhere and count once.

    A scalar on `device`. Collective: one number. ValueError for a norm_type that is no norm.
    """
    p = float(norm_type)
    if not p > 0:
        raise ValueError(f"norm_type={norm_type!r}: expected a number above 0, or math.inf")
    # Replicated ones on place 0 only: all ranks are added up, and each number counts once.
    norms = []
    for some in cut_by_kind([gradient.detach() for gradient in (*shards, *(replicated if me.r == 0 else ()))]):
        dtype = torch.promote_types(some[0].dtype, torch.float32)
        # In 64 bits, so that the result hardly depends on how a layout cuts the sum.
        norms.append(torch.stack(foreach_norm(some, p, dtype=dtype)).to(device, torch.float64))
    wide = torch.cat(norms) if norms else torch.zeros(1, dtype=torch.float64, device=device)
    total = wide.max() if p == math.inf else wide.pow(p).sum()
    if me.n > 1:
        dist.all_reduce(total, dist.ReduceOp.MAX if p == math.inf else dist.ReduceOp.SUM, group=me.group)
    dtype = torch.float32
    for gradient in (*shards, *replicated):
        dtype = torch.promote_types(dtype, gradient.dtype)
    return (total if p == math.inf else total.pow(1 / p)).to(dtype)


@torch.no_grad()
def clip_total_norm(shards: Sequence[Tensor], replicated: Sequence[Tensor], max_norm: float, norm_type: float,
                    me: Member, device: torch.device) -> Tensor:
    """Scale all gradients so that total_norm of them is at most `max_norm`; returns what it was. Collective."""
    norm = total_norm(shards, replicated, norm_type, me, device)
    clip([*shards, *replicated], max_norm, norm)
    return norm


def clip(gradients: Sequence[Tensor], max_norm: float, norm: Tensor) -> None:
    """As torch.nn.utils.clip_grads_with_norm_: times max_norm / norm, and never more than 1."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm!r}: expected a number of at least 0")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for some in cut_by_kind(gradients):
        foreach_multiply(some, factor.to(some[0].device))


def cut_by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Lists of one dtype and device, which one kernel goes through on a GPU."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


REPLACED_BY = "_replaced_by"


def remember_replacement(parameters: Iterable[nn.Parameter], by: str) -> None:
    """From now on an optimiser of one of `parameters` raises ValueError when it steps. `by`: who has cut them.

    They are replaced by their parts: whoever made an optimiser before steps on what no module uses. Their .grad is
    None for ever, so that such an optimiser would change nothing, and say nothing.
    """
    for parameter in parameters:
        setattr(parameter, REPLACED_BY, by)
    watch_optimizers()


@cache
def watch_optimizers() -> None:
    """Look at each step of all optimisers there are and will be: who cuts a parameter does not know who steps on it."""
    # Only from the first cut on: every optimiser of the process pays for it, also one that has nothing to do with us.
    register_optimizer_step_pre_hook(require_parts)


def require_parts(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for by in (getattr(p, REPLACED_BY, None) for options in optimizer.param_groups for p in options["params"]):
        if by is not None:
            raise ValueError(f"this {type(optimizer).__name__} was made before {by} cut the parameters it steps on: "
                             "expected an optimiser made afterwards, of the parameters() that the module has then")
