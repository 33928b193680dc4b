"""A test whose body every rank runs. Its name is the claim; what the ranks return has to be as it says, or they judge.

    @gives([2.0, 0.0, 1.0], world_size=3)
    def test_a_message_goes_round(): ...

    @on_ranks(1, 2, 3)
    def test_every_rank_has_the_sum():
        assert ...
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_lib.checkpoint.saving import beside
from course_lib.expert_parallel import make_groups
from course_lib.groups.membership import group_of_ranks, member
from course_lib.runtime import device, launch


def time_limits() -> set[float]:
    """On two ranks or more: how long the calls on groups of all kinds, however they are made, wait for other ranks."""
    groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group(backend="gloo"), *make_groups(1), beside().group,
              group_of_ranks([dist.get_rank()]), *member().groups_of_links([(0, 1)]).values(),
              *dist.new_subgroups(1)[:1]]
    if device().type == "cpu":  # the pretended GPU's wires cannot be split
        groups.append(init_device_mesh("cpu", (1, dist.get_world_size())).get_group(0))
    backends = [group._get_backend(torch.device(kind)) for group in groups if isinstance(group, dist.ProcessGroup)
                for kind in {"cpu", device().type} if kind in dist.get_backend_config(group)]
    assert len(backends) > len(groups) - 2
    return {backend.options._timeout.total_seconds() for backend in backends}


def gives(expected: Sequence[Any], world_size: int = 2, run: Callable = launch, **options: Any) -> Callable:
    """Make a test of a body: `run(body, world_size=...)` returns `expected`, by rank."""
    def make(body: Callable[[], Any]) -> Callable[[], None]:
        def test() -> None:
            assert list(run(body, world_size=world_size, **options)) == list(expected)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test
    return make


def on_ranks(*world_sizes: int, **options: Any) -> Callable:
    """Make a test of a body that asserts on every rank, in one launch for each of `world_sizes`.

    Its parameters may not have the names of launch's own, such as seed.
    """
    def make(body: Callable[..., None]) -> Callable[..., None]:
        # What it uses of its file goes along, so that ranks need not import the file, and pytest with it.
        cloudpickle.register_pickle_by_value(sys.modules[body.__module__])

        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            for world_size in world_sizes:
                launch(body, world_size=world_size, **options, **arguments)
        return test
    return make
