"""What a step needs in memory, seen in one process that shards nothing: costs.sharding counts the peaks from it."""

from collections.abc import Callable

from torch import Tensor, nn

from course_lib.costs.sharding import BACKWARD, FORWARD, GRADIENT, LEFT, Event, Watched
from course_lib.runtime import record_memory
from course_lib.runtime.tensors import tensors_in
from course_lib.zero.units import blocks_and_the_whole, homes, innermost_around


def watch(model: nn.Module, run: Callable[[], Tensor]) -> Watched:
    """See what `run`, which returns the loss of `model`, and the loss's backward() need in memory, in one process.

    All parameters are of one dtype and trained (ValueError otherwise). Units are those of FullyShardedDataParallel.
    """
    parameters = list(model.parameters())
    if len({p.dtype for p in parameters}) != 1 or not all(p.requires_grad for p in parameters):
        raise ValueError("watch(model, ...): expected parameters of one dtype, all trained; got "
                         f"{sorted({str(p.dtype) for p in parameters})} and "
                         f"{sum(not p.requires_grad for p in parameters)} that need no gradient")
    names = blocks_and_the_whole(model)
    unit_of = {p: innermost_around([name for name, _ in where], names) for p, where in homes(model).items()}
    positions = {p: position for position, p in enumerate(parameters)}
    seen: list[tuple[int, str, str, int | None]] = []  # (changes of memory so far, kind, unit, parameter)

    def note(kind: str, unit: str, parameter: nn.Parameter | None = None) -> None:
        seen.append((len(log.over_time()) - 1, kind, unit, positions.get(parameter)))

    def left(unit: str, outputs: Tensor) -> None:
        note(LEFT, unit)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: note(BACKWARD, unit))

    handles = [p.register_post_accumulate_grad_hook(lambda p: note(GRADIENT, unit_of[p], p)) for p in parameters]
    for unit in sorted(names):
        module = model.get_submodule(unit)
        handles += [module.register_forward_pre_hook(lambda *_, unit=unit: note(FORWARD, unit)),
                    module.register_forward_hook(lambda _, __, outputs, unit=unit: left(unit, outputs))]
    try:
        with record_memory(model=model) as log:
            run().backward()
    finally:
        for handle in handles:
            handle.remove()
    besides = [everything - of_model for everything, of_model in zip(log.over_time(), log.over_time("parameters"))]
    finished, events = 0, []
    for (first, kind, unit, position), (last, *_) in zip(seen, [*seen[1:], (len(besides) - 1,)]):
        at_first = besides[first] - finished
        finished += parameters[position].nbytes if kind == GRADIENT else 0
        events.append(Event(kind, unit, position, at_first, max(besides[first:last + 1]) - finished))
    return Watched(tuple(events), tuple(p.numel() for p in parameters), tuple(unit_of[p] for p in parameters),
                   parameters[0].element_size())
