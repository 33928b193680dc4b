"""Chapter 3 on a rank: gradients averaged in five ways, buckets as a plan, which rank learns from what.

    N  numbers in all gradients      k  micro-batches of a step; in 3.5 numbers that a rank sends
"""

import builtins
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Work
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.on_rank import batch_loss, count_calls, data, gradients_of, model_of, plain
from course_lib.runtime.instruments import pending
from course_lib.runtime.instruments.arrivals import Arrival, Run, handle_arrivals

EPOCHS = [0, 1, 2, 3, 10, 100]  # some differ by each of 1, 2, 3, 7 to 10, and 97 to 100
STEPS = 2  # of 3.7: what the first one leaves behind shows in the second
POLLS = 100  # who asks so often whether a message has arrived, and computes nothing in between, waits for it
LOOKS, LOOK_S = 5, 0.001  # who stands at one place for so many looks waits for somebody else
PATIENCE_S = 5.0  # for threads of the reader's, which wait for other ranks
Inputs = dict[str, Any]
Order = list[list[Any]]  # of one step: ["gradient", 0], ["begin", bytes] and ["wait", 0], as they came


def average(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.1 and 3.3: the gradients after `function` got the model, and its rows or the cap of a bucket."""
    model, (batch,) = model_of(inputs), inputs["batches"]
    if "given" in inputs:
        for name, parameter in model.named_parameters():
            parameter.grad = inputs["given"].get(name)
    else:
        batch_loss(model, batch).backward()
    _, calls = count_calls(function, model, inputs.get("cap", len(batch[0])))
    return {"gradients": gradients_of(model), "calls": calls}


def buckets(function: Callable, inputs: list[Any]) -> Any:
    """3.2: the lists of indices for sizes and a cap."""
    return data(function(*inputs))


class RowsHeld:
    """How many rows of activations wait for their backward, and the most that ever did."""

    def __init__(self, model: nn.Module) -> None:
        self.now = self.most = 0
        model.register_forward_pre_hook(self.forward)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self.backward)

    def forward(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        """A forward hook: counts the rows whose graph is kept from now on."""
        if torch.is_grad_enabled():
            self.now += len(given[0])
            self.most = max(self.most, self.now)

    def backward(self, _: Tensor) -> None:
        """A backward hook: the graph is gone, and its rows with it."""
        self.now = 0


def accumulate(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.4: the gradients of torch's DDP after all micro-batches, and the rows whose activations it held at once."""
    model = model_of(inputs)
    held = RowsHeld(model)
    _, calls = count_calls(function, DistributedDataParallel(model), inputs["batches"])
    # Only all-reduces carry gradients; after its first one DDP also agrees on new buckets.
    return {"gradients": gradients_of(model), "rows": held.most,
            "calls": [call for call in calls if call[0] == "all_reduce"]}


def top_k(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.5: the result for the gradient of each batch, and what it leaves of the residual, which is always the same."""
    gradients, steps, calls = flat_gradients(inputs), {}, []
    residual = torch.zeros_like(gradients[0])  # (N,)
    for number, gradient in enumerate(gradients):
        returned, own = count_calls(function, gradient.clone(), residual, inputs["k"])
        calls += own
        steps |= name_step(number, plain(returned), residual.clone())
    return {"steps": steps, "calls": calls}


def name_step(number: int, returned: Any, residual: Tensor) -> dict[str, Any]:
    """The two things to compare of one step, under names that say which step it was."""
    return {f"the result of step {number}": returned, f"the residual after step {number}": residual}


def flat_gradients(inputs: Inputs) -> list[Tensor]:
    """For each batch all gradients, one after the other, (N,)."""
    return inputs["given"] if "given" in inputs else [
        flat_gradient(model_of(inputs), batch) for batch in inputs["batches"]]


def flat_gradient(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The gradient of the batch's loss by all parameters, one vector in their order."""
    batch_loss(model, batch).backward()
    return nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())


def shard(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.6: this rank's indices of some epochs, the same once more, and the global generators that have moved.

    On a cluster hash() of a text differs from process to process. These ranks are copies of one process, where it
    would be the same: so hash is replaced by one that differs from rank to rank.
    """
    N, n, r = (inputs[name] for name in ("num_samples", "world_size", "rank"))
    common, builtins.hash = hash, lambda value: common(value) ^ (r if "'" in repr(value) else 0)
    try:
        before = generator_states()
        shards = [data(function(N, epoch, r, n)) for epoch in EPOCHS]
        moved = [name for name, state in generator_states().items() if before.get(name, state) != state]
        torch.rand(1)  # whatever else happens in a training between two calls
        again = [data(function(N, epoch, r, n)) for epoch in EPOCHS]
    finally:
        builtins.hash = common
    return {"shards": shards, "again": again, "moved": moved}


def generator_states() -> dict[str, Any]:
    """The state of each global random generator that there is."""
    states = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, keys.tolist(), rest)
    return states


class Happenings:
    """What happened in one step, in order. A listener to calls, whoever makes them.

    Calls may come from threads of the reader's, and then it is chance whether one begins before the next gradient. So
    the two are put in order: a gradient waits for threads that have something to do, and a thread's call, once it has
    begun, for the next gradient. If there is none because the main thread stands still, that one waits for a message.
    """

    def __init__(self) -> None:
        self.order: Order = []
        self.called: set[int] = set()  # numbers of calls that were made: whoever is inside again waits
        self.held: set[threading.Thread] = set()
        self.main, self.others = threading.main_thread(), set(threading.enumerate())
        self.num_gradients, self.settling = 0, False
        self.polls = 0  # since the last gradient

    def gradient(self, _: Tensor) -> None:
        """The first hook of a parameter: its gradient is computed."""
        self.main = threading.current_thread()  # of this step, whatever thread that is
        until, self.settling = time.monotonic() + PATIENCE_S, True
        while (threads := set(threading.enumerate()) - self.others - {self.main}) and time.monotonic() < until:
            at_work = threads - self.held
            if stand_still(at_work) and not any(pending.waiting_in.get(each.ident) for each in at_work - self.held):
                break
        self.order.append(["gradient", 0])
        self.num_gradients, self.settling, self.polls = self.num_gradients + 1, False, 0
        self.held.clear()  # here: until they notice they are at work

    def begin_call(self, call: pending.GroupCall) -> None:
        self.order.append(["begin", call.num_bytes])

    def begin_wait(self, call: pending.GroupCall) -> None:
        if call.number in self.called and threading.current_thread() is self.main:
            self.order.append(["wait", 0])
        self.called.add(call.number)

    def end_wait(self, *_: Any) -> None:
        pass

    end_call = end_wait

    def waits(self, wait: Callable, *given: Any) -> Any:
        """In the place of a future's wait: one that no work waits for."""
        if threading.current_thread() is self.main:
            self.order.append(["wait", 0])
        return wait(*given)

    def polled(self, ask: Callable, *given: Any) -> bool:
        """In the place of what says whether a message has arrived. It may take its time, so none has before the next
        gradient; but who goes on asking waits.
        """
        if threading.current_thread() is not self.main:
            return ask(*given)
        self.polls += 1
        if self.polls == POLLS:
            self.order.append(["wait", 0])
        return self.polls >= POLLS and ask(*given)

    def hold(self, _: Arrival, run: Run) -> Any:
        """A call of another thread than the main one begins here, and goes on after the next gradient."""
        if threading.current_thread() is self.main:
            return run()
        before = self.num_gradients
        self.held.add(threading.current_thread())
        while self.num_gradients == before:
            if self.settling:
                time.sleep(LOOKS * LOOK_S)
            elif stand_still({self.main}) and not self.settling and self.num_gradients == before:
                self.order.append(["wait", 0])
                break
        self.held.discard(threading.current_thread())
        return run()


def stand_still(threads: set[threading.Thread]) -> bool:
    """Whether each of them was at one place for all looks, while no thread of this process ran or could have."""
    before = None
    for _ in range(LOOKS):
        frames = sys._current_frames()
        places = [(id(frame), frame and frame.f_lasti) for frame in (frames.get(each.ident) for each in threads)]
        del frames
        if before not in (None, places) or others_run():
            return False
        before = places
        time.sleep(LOOK_S)  # whoever waits for the interpreter gets it
    return True


def others_run() -> bool:
    """Whether another thread than the calling one has a core, or stands in line for one. Linux only."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path("/proc/self/task").iterdir()]
    except OSError:  # one has ended meanwhile; or there is no such folder
        return Path("/proc/self/task").is_dir()
    return sum(state != "S" for state in states) > 1


@contextmanager
def in_the_place_of_questions(seen: Happenings) -> Iterator[None]:
    """What asks whether a message has arrived, or waits for it and is no work, goes through `seen`."""
    with ExitStack() as stack:
        future = torch.futures.Future.__bases__[0]  # what get_future() returns
        for owner, name, ours in ((Work, "is_completed", seen.polled), (future, "done", seen.polled),
                                  (future, "wait", seen.waits)):
            theirs = getattr(owner, name)
            stack.callback(setattr, owner, name, theirs)
            setattr(owner, name, lambda *given, theirs=theirs, ours=ours: ours(theirs, *given))
        yield


def overlap(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.7: the gradients after the last of some steps; of each step, its events in order, and its calls; the rows."""
    model, steps = model_of(inputs), []
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learns:
        parameter.grad = torch.zeros_like(parameter)
    held = RowsHeld(model)
    before = num_hooks(learns)
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        seen = Happenings()
        hooks = [parameter.register_hook(seen.gradient) for parameter in learns]  # before the reader's
        with handle_arrivals(seen.hold), pending.listen(seen), in_the_place_of_questions(seen):
            _, calls = count_calls(function, model, inputs["batches"], inputs["cap"])
        for hook in hooks:
            hook.remove()
        steps.append({"order": seen.order, "calls": calls})
    return {"gradients": gradients_of(model), "steps": steps, "rows": held.most, "hooks": num_hooks(learns) - before,
            "calls": [call for step in steps for call in step["calls"]]}


def num_hooks(parameters: Sequence[nn.Parameter]) -> int:
    """How many hooks the parameters have."""
    return sum(len(hooks or ()) for each in parameters
               for hooks in (each._backward_hooks, each._post_accumulate_grad_hooks))
