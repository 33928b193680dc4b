"""What goes to a rank and comes back is what it was: kinds, shapes, ties and states of tensors, on the CPU's ranks.

tests/pretend/test_devices.py has the same where the rank's device is a GPU.
"""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import RankFailed, launch
from course_lib.runtime.ranks.parcels import pack_call, pack_result, unpack_call
from tests.runtime.zoo import in_plain_words, zoo

FOR_THE_CPU = {  # what the pretended GPU does not know
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "quantised": torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8),
}


def test_every_kind_of_tensor_arrives_as_it_was_sent_by_argument_and_by_closure_and_returns_as_the_rank_had_it():
    sent = {**zoo(), **FOR_THE_CPU}
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)

    def look(given):
        built = {**zoo(), **FOR_THE_CPU}
        drawn = torch.rand(2, generator=generator), generator, torch.backends.mkldnn.is_available()
        return in_plain_words(given), in_plain_words(sent), built, in_plain_words(built), drawn

    (given, enclosed, returned, before, (drawn, generator_there, available)), = launch(look, sent, world_size=1)
    assert given == enclosed == in_plain_words(sent) and in_plain_words(returned) == before
    assert torch.equal(drawn, torch.rand(2, generator=generator))
    assert torch.equal(generator_there.get_state(), generator.get_state())
    assert type(torch.backends) is not type(torch) and available == torch.backends.mkldnn.is_available()


def test_tied_parameters_stay_tied_and_a_parameter_stays_one():
    model = zoo()["module"]
    fn, (there,), _ = unpack_call(pack_call(print, (model,), {}))
    assert there.last.weight is there.first.weight and type(there.first.weight) is nn.Parameter
    back = pickle.loads(pack_result(there))
    assert back.last.weight is back.first.weight and back.first.weight.requires_grad


def test_tensors_of_the_notebooks_own_gpu_reach_a_rank_that_has_none(monkeypatch):
    """What torch writes for a storage says where it lay: here, for a while, on a GPU."""
    values = torch.arange(4.0)
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    call = pack_call(print, (values,), {})
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        pickle.loads(call)
    _, (arrived,), _ = unpack_call(call)
    assert torch.equal(arrived, values) and arrived.device.type == "cpu"


class Told(ValueError):
    def __init__(self, values):
        super().__init__("told")
        self.values = values


def test_the_tensors_of_an_exception_come_along():
    def fail():
        raise Told(torch.full((2,), float(dist.get_rank())))

    with pytest.raises(RankFailed) as caught:
        launch(fail, world_size=1)
    assert torch.equal(caught.value.cause.values, torch.zeros(2))
