"""What recompute adds to the two short forms that notebook 7 begins with: in each situation here it does what autograd
alone does, and at least one of the short forms does not. They are the notebook's own, so that they cannot drift apart.
"""

import itertools
import weakref
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from course_lib.sequence_parallel import recompute

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks/07_sequence_parallel.ipynb"


def of_the_notebook(*names):
    """What the cells of the notebook define under these names."""
    defined = {"torch": torch, "itertools": itertools, "saved_tensors_hooks": saved_tensors_hooks}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and any(f"def {name}(" in cell.source for name in names):
            exec(compile(cell.source, NOTEBOOK.name, "exec"), defined)
    return [defined[name] for name in names]


naive_recompute, hooked_recompute = of_the_notebook("naive_recompute", "hooked_recompute")
FORMS = {"alone": lambda function: function, "naive": lambda function: partial(naive_recompute, function),
         "hooks": hooked_recompute, "library": recompute}


class Layer:
    """tanh(x W)."""

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.W = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def __call__(self, x, gain=1.0):
        return torch.tanh(x @ self.W) * gain

    def gradients(self, y):
        y.float().sum().backward()
        return self.x.grad, self.W.grad


def one_tensor(layer, wrap):
    return layer.gradients(wrap(layer)(layer.x))


def no_input_gradient(layer, wrap):
    return layer.gradients(wrap(layer)(layer.x.detach()))


def keyword(layer, wrap):
    return layer.gradients(wrap(layer)(layer.x, gain=2.0))


def two_results(layer, wrap):
    return layer.gradients(torch.stack(wrap(lambda x: (layer(x), layer(x).sin()))(layer.x)))


def gradient_of_a_weight(layer, wrap):
    return torch.autograd.grad(wrap(layer)(layer.x).sum(), layer.W), layer.W.grad


def dropout(layer, wrap):
    y = wrap(lambda x: F.dropout(layer(x), 0.5))(layer.x)
    torch.rand(3)  # somebody else draws before backward comes
    return layer.gradients(y), torch.rand(3)


def autocast(layer, wrap):
    with torch.autocast("cpu", torch.bfloat16):
        y = wrap(layer)(layer.x)
    return layer.gradients(y)


def changed_in_place(layer, wrap):
    h = layer.x * 1
    y = wrap(layer)(h)
    h.add_(1)
    return layer.gradients(y)


def backward_for_one_result_and_then_for_both(layer, wrap):
    y, z = wrap(lambda x: (layer(x), x.exp()))(layer.x)
    first, = torch.autograd.grad(z.sum(), layer.x, retain_graph=True)
    return first, torch.autograd.grad(y.sum() + z.sum(), (layer.x, layer.W))


BOTH = {"naive", "hooks"}
SITUATIONS = {  # -> the forms that do something else than autograd alone
    one_tensor: set(), no_input_gradient: {"naive"}, keyword: {"naive"}, two_results: {"naive"},
    gradient_of_a_weight: {"naive"}, changed_in_place: {"hooks"}, dropout: BOTH, autocast: BOTH,
    backward_for_one_result_and_then_for_both: BOTH,
}


def outcome(situation, wrap):
    """Its numbers, or the kind of its error."""
    try:
        return situation(Layer(), wrap)
    except Exception as error:
        return type(error)


def is_same(one, other):
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is other


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_recompute_does_what_autograd_alone_does_where_a_short_form_does_not(situation):
    expected = outcome(situation, FORMS["alone"])
    differ = {name for name, wrap in FORMS.items() if not is_same(outcome(situation, wrap), expected)}
    assert differ == SITUATIONS[situation]


def test_recompute_alone_stops_where_the_last_tensor_is_saved():
    def ends(wrap):
        reached = []

        def function(x):
            y = x.exp() + 1  # exp saves its result, and the addition nothing
            reached.append("end")
            return y

        wrap(function)(torch.ones(2, requires_grad=True)).sum().backward()
        return len(reached)

    assert {name: ends(wrap) for name, wrap in FORMS.items()} == {"alone": 1, "naive": 2, "hooks": 2, "library": 1}


def test_the_hooks_alone_keep_what_goes_into_a_recomputation_inside_another():
    def is_kept(wrap):
        layer, inner = Layer(), []

        def function(x):
            h = x.exp() * 2
            inner.append(weakref.ref(h))
            return wrap(layer)(h).sin()

        y = wrap(function)(layer.x)
        return inner[0]() is not None and y.requires_grad

    kept = {name: is_kept(wrap) for name, wrap in FORMS.items()}
    assert kept == {"alone": True, "naive": False, "hooks": True, "library": False}


def test_recompute_alone_says_that_the_second_run_was_another():
    def attempt(wrap):
        sizes = iter((3, 2))
        x = torch.ones(4, requires_grad=True)
        y = wrap(lambda x: x[:next(sizes)].exp())(x)
        try:
            y.sum().backward()
        except Exception as error:
            return str(error)

    assert "when it was run again: expected the same" in attempt(recompute)
    assert "again" not in attempt(hooked_recompute)
