"""One call of a differentiable collective on the ranks, and what one process computes from all ranks' tensors.

Apart from the tests, since ranks import it in every launch: pytest would cost them time.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.runtime import device, record_communication
from tests.collectives.cases import laid_out

OPERATORS = ("copy_to_group", "reduce_from_group", "scatter_to_group", "gather_from_group", "all_gather_along",
             "reduce_scatter_along", "all_to_all_along")
SAME_INPUT, SAME_GRADIENT = ("copy_to_group", "scatter_to_group"), ("reduce_from_group", "gather_from_group")
CALLS = {  # forward, backward
    "copy_to_group": ([], ["all_reduce"]),
    "reduce_from_group": (["all_reduce"], []),
    "scatter_to_group": ([], ["all_gather"]),
    "gather_from_group": (["all_gather"], []),
    "all_gather_along": (["all_gather"], ["reduce_scatter"]),
    "reduce_scatter_along": (["reduce_scatter"], ["all_gather"]),
    "all_to_all_along": (["all_to_all"], ["all_to_all"]),
}
LAYOUTS = ("contiguous", "transposed", "every second", "expanded")


@dataclass(frozen=True)
class Case:
    """One call: `shape` is that of each rank's input, `layout` that of the input and of the gradient that arrives."""

    operator: str
    members: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    layout: str

    @property
    def n(self):
        return len(self.members)

    def tensor(self, shape, seed):
        """Small whole numbers, which float64 adds without rounding: results must be equal to the bit."""
        made = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed), device="cpu")
        made = laid_out(made.double().to(device()), self.layout)
        return made[:1].expand(shape) if self.layout == "expanded" else made

    def input(self, place):
        return self.tensor(self.shape, 0 if self.operator in SAME_INPUT else place)

    def gradient(self, place, shape):
        return self.tensor(shape, 100 if self.operator in SAME_GRADIENT else 100 + place)


def cases(members):
    """All operators, layouts and dims among `members`."""
    n = len(members)
    for operator, layout in product(OPERATORS, LAYOUTS):
        for shape in [(2 * n,), (n, 3 * n, 2 * n), (n, 0, n)][:2 + (layout == "contiguous")]:
            num_dims = {"copy_to_group": 0, "reduce_from_group": 0, "all_to_all_along": 2}.get(operator, 1)
            for dims in product(range(-len(shape), len(shape)), repeat=num_dims):
                yield Case(operator, members, shape, dims, layout)


def in_one_process(case, inputs):
    """The output of every place, from the inputs of all: what is the same on all ranks is one tensor here."""
    n, dims = case.n, case.dims
    if case.operator == "copy_to_group":
        return [inputs[0] * 1 for _ in range(n)]
    if case.operator == "reduce_from_group":
        return [sum(inputs)]
    if case.operator == "scatter_to_group":
        return list(inputs[0].chunk(n, *dims))
    if case.operator == "gather_from_group":
        return [torch.cat(inputs, *dims)]
    if case.operator == "all_gather_along":
        return [torch.cat(inputs, *dims) for _ in range(n)]
    if case.operator == "reduce_scatter_along":
        return list(sum(inputs).chunk(n, *dims))
    return [torch.cat([x.chunk(n, dims[0])[place] for x in inputs], dims[1]) for place in range(n)]


def expected(case, place):
    """Output and gradient of the input of `place`, by one process."""
    count = 1 if case.operator in SAME_INPUT else case.n
    inputs = [case.input(each).requires_grad_() for each in range(count)]
    outputs = in_one_process(case, inputs)
    gradients = [case.gradient(each, y.shape) for each, y in enumerate(outputs)]
    of_inputs = torch.autograd.grad(outputs, inputs, gradients)
    return outputs[place % len(outputs)].detach(), of_inputs[place % count]


def sent_elements(calls, n, x, y):
    """Of one direction from x to y, by the formulas of chapter 2; M is the larger tensor of both."""
    M = max(x.numel(), y.numel())
    return {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}[calls[0]] * (n - 1) * M / n \
        if calls else 0


def problems_of(case, group):
    place = case.members.index(dist.get_rank())
    x = case.input(place).requires_grad_()
    with record_communication() as forward:
        y = getattr(collectives, case.operator)(x, *case.dims, group)
    gradient = case.gradient(place, y.shape)
    with record_communication() as backward:
        y.backward(gradient)
    for log, calls in zip((forward, backward), CALLS[case.operator]):
        if [event.op for event in log.events] != calls:
            yield f"{case}: called {[event.op for event in log.events]}, expected {calls}"
        if log.sent_bytes != 8 * sent_elements(calls, case.n, x, y):
            yield f"{case}: sent {log.sent_bytes} bytes, expected {8 * sent_elements(calls, case.n, x, y)}"
    y_expected, x_gradient = expected(case, place)
    for name, given, wanted in [("output", y, y_expected), ("gradient", x.grad, x_gradient),
                                ("input after it", x, case.input(place)),
                                ("gradient after it", gradient, case.gradient(place, y.shape))]:
        if not torch.equal(given, wanted):
            yield f"{case} on place {place}: {name} is {given}, expected {wanted}"
    if y.numel() and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() or not y.is_contiguous():
        yield f"{case}: the output is not a new contiguous tensor"


def mistakes(group, foreign):
    """Of rank 1 of 2; rank 0 is not asked, for all fail before they send."""
    x, c = torch.ones(2, 3), collectives
    return {
        "dim too large": partial(c.scatter_to_group, x, 2, group),
        "dim too small": partial(c.all_gather_along, x, -3),
        "dim that is no number": partial(c.gather_from_group, x, 1.0),
        "group in the place of dim": partial(c.all_gather_along, x, group),
        "dim that is a truth value": partial(c.reduce_scatter_along, x, True),
        "no dims": partial(c.gather_from_group, torch.tensor(1.0), 0),
        "pieces of a scatter": partial(c.scatter_to_group, x, 1),
        "pieces of a reduce-scatter": partial(c.reduce_scatter_along, x, -1),
        "pieces of an all-to-all": partial(c.all_to_all_along, x, 1, 0),
        "where to join": partial(c.all_to_all_along, x, 0, 5),
        "foreign group": partial(c.copy_to_group, x, foreign),
        "no group": partial(c.reduce_from_group, x, "world"),
    }
