"""launch: real ranks, results in rank order, the reader's own functions inside; what goes there and back is as it was.

tests/pretend/test_devices.py has the way there and back where the rank's device is a GPU.
"""

import itertools
import os
import pickle
import random
import threading
from dataclasses import dataclass

import numpy
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from course_lib.runtime import RankFailed, launch, seconds, start_ranks
from course_lib.runtime.ranks.parcels import pack_call, pack_result, unpack_call
from tests.runtime.zoo import in_plain_words, zoo


def who_am_i():
    return dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]), os.getpid()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_results_come_in_rank_order_from_processes_of_their_own(world_size):
    seen = launch(who_am_i, world_size=world_size)
    assert [of_rank[:3] for of_rank in seen] == [(rank, world_size, rank) for rank in range(world_size)]
    assert len({pid for *_, pid in seen} | {os.getpid()}) == world_size + 1


def test_arguments_closures_lambdas_and_classes_of_the_notebook_survive_the_way_there_and_back():
    @dataclass
    class Score:
        value: int

        def shift(self, by):
            return Score(self.value + by)

    base = 10
    assert launch(lambda a, *, b: base + a * b + dist.get_rank(), 3, b=2, world_size=2) == [16, 17]
    scores = launch(lambda start, *, by: start.shift(by + dist.get_rank()), Score(1), by=4, world_size=2)
    assert scores == [Score(5), Score(6)] and all(type(score) is Score for score in scores)


def in_triangles():
    """A send that is not waited for needs no receiver yet, as TORCH_GLOO_LAZY_INIT=1 would want one for the first
    message of some pairs: this would then be a deadlock.
    """
    heard = []
    for first, second, third in itertools.permutations(range(3)):
        received = torch.zeros(1)
        if dist.get_rank() == first:
            sending = dist.isend(torch.full((1,), float(first)), second)
            dist.send(torch.ones(1), third)
            sending.wait()
        elif dist.get_rank() == second:
            dist.recv(received, third)
            dist.recv(received, first)
            heard.append(received.item() == first)
        else:
            dist.recv(received, first)
            dist.send(torch.ones(1), second)
    return heard


def test_ranks_communicate_for_real_and_a_send_that_is_not_waited_for_needs_no_receiver_yet():
    assert launch(in_triangles, world_size=3) == [[True, True]] * 3


def test_every_rank_starts_from_the_same_seed_and_another_seed_differs():
    def draw():
        return torch.rand(1).item(), random.random(), numpy.random.rand()

    first, again, other = launch(draw, world_size=2), launch(draw, world_size=2), launch(draw, world_size=2, seed=1)
    assert first == again and first[0] == first[1]
    assert all(a != b for a, b in zip(first[0], other[0], strict=True))


def test_environment_folder_and_threads_are_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("SET_IN_THE_NOTEBOOK", "yes")
    monkeypatch.chdir(tmp_path)

    def look():
        return (os.environ["SET_IN_THE_NOTEBOOK"], os.environ["ONLY_FOR_RANKS"], os.getcwd(), torch.get_num_threads())

    assert launch(look, world_size=2, threads=2, env={"ONLY_FOR_RANKS": "1"}) == [("yes", "1", str(tmp_path), 2)] * 2
    assert "ONLY_FOR_RANKS" not in os.environ


def test_an_unfinished_collective_is_waited_for_before_its_result_leaves_the_rank():
    def return_before_wait():
        return functional_all_reduce(torch.ones(1000), "sum", dist.group.WORLD)

    for tensor in launch(return_before_wait, world_size=3):
        assert type(tensor) is torch.Tensor and torch.equal(tensor, torch.full((1000,), 3.0))


def return_dtensor():
    return distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Replicate()])


def launch_inside():
    assert psutil.Process().children() == []  # importing the course in a rank starts no server
    launch(who_am_i)


@pytest.mark.parametrize("function, words", [
    (return_dtensor, r"full_tensor\(\) or tensor.to_local\(\)"),
    (launch_inside, "ValueError: launch was called inside a rank"),
])
def test_a_dtensor_as_result_and_a_launch_inside_a_rank_are_refused_with_the_way_out(function, words):
    with pytest.raises(RankFailed, match=words):
        launch(function, world_size=1)


def test_options_that_cannot_work_are_refused_with_what_was_given_also_for_ranks_that_stay(snapshot):
    said = []
    for option in ({"world_size": 0}, {"world_size": -2}, {"world_size": 2.0}, {"world_size": True},
                   {"world_size": None}, {"threads": 0}, {"timeout": 0}, {"timeout": "long"},
                   {"timeout": float("nan")}, {"env": {"A": 1}}, {"env": "A=1"}, {"seed": "x"}, {"backend": "mpi"}):
        with pytest.raises(ValueError) as refused:
            launch(who_am_i, **option)
        with pytest.raises(ValueError) as refused_too:
            start_ranks(**option)
        assert str(refused_too.value) == str(refused.value)
        said.append(str(refused.value))
    assert "\n".join(said) == snapshot


def test_what_is_no_function_or_cannot_be_sent_is_refused_with_the_likely_slip(snapshot):
    lock, said = threading.Lock(), []
    for call in (lambda: launch(3), lambda: launch(print, 1, lock), lambda: launch(print, guard=lock),
                 lambda: launch(lambda: lock.locked())):
        with pytest.raises(ValueError) as refused:
            call()
        said.append(str(refused.value))
    assert "\n".join(said) == snapshot


def test_nothing_recorded_is_said_plainly_and_seconds_times_one_call_with_its_arguments():
    with pytest.raises(ValueError, match=r"with record_timeline\(\): ..."):
        _ = launch(who_am_i, world_size=1).timeline
    given, inner = [], []

    def call(*args, **kwargs):
        given.append((args, kwargs))

    outer = seconds(lambda: (call(1, b=2), inner.append(seconds(call, 3))))
    assert given == [((1,), {"b": 2}), ((3,), {})] and 0 < inner[0] < outer


# What goes to a rank and comes back: kinds, shapes, ties and states of tensors

FOR_THE_CPU = {  # what the pretended GPU does not know
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "quantised": torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8),
}


def test_a_function_of_the_notebook_under_a_cache_arrives_with_an_empty_one():
    cells = {"__name__": "__main__"}
    exec("import functools\n@functools.lru_cache(7)\ndef double(x): return 2 * x\ndouble(3)", cells)
    _, (there,), _ = unpack_call(pack_call(print, (cells["double"],), {}))
    assert there(4) == 8 and there.cache_parameters()["maxsize"] == 7 and there.cache_info().currsize == 1


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
