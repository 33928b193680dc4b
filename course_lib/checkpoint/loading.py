"""load: every rank reads what it holds in the layout that it has now, whatever the layout was.

    find      the last complete checkpoint, the same for all ranks; or the last one that is intact
    verify    each rank reads its share of the files, and compares size and checksum with the manifest
    compare   names and shapes of the model with those of the checkpoint: all that differs is named
    read      into the model and the optimiser, in place                                planners.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.checkpoint.folders import complete_checkpoints, find, origin, step_of
from course_lib.checkpoint.manifest import DamagedCheckpoint, problems_of, read_manifest
from course_lib.checkpoint.piece import PREFIX, Model, State, pieces, pieces_to_load, restore
from course_lib.checkpoint.reading import SavedTensor, read_pieces, saved_tensors
from course_lib.checkpoint.saving import RankGroup, all_ranks, finish, layout_of
from course_lib.zero import ZeroOptimizer
from course_lib.zero.consolidate import MASTER

Saved = Mapping[str, SavedTensor]


@dataclass(frozen=True)
class Loaded:
    """What was loaded: the run goes on with step number `step` (as many have been taken) and what `extra` says."""

    path: Path
    step: int
    extra: Mapping[str, Any]
    same_layout: bool


def load(folder: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None) -> Loaded:
    """Fill `model` and `optimizer`, in place, from the checkpoint `folder`, or from the last one in it. Collective.

    The layout may be another one than at save: number of ranks, slices, stages, ZeRO's stage. Random numbers go on
    where they stood, in the same layout (see piece.py); learning rates and the like are those that were saved.

    DamagedCheckpoint, which names the file, where one is not as it was written. ValueError where there is no complete
    checkpoint, and where it is one of another model: with the names that differ. Nothing has been changed then.
    """
    finish()
    ranks = all_ranks()
    path = ranks.first(lambda: find(folder))
    verify(path, ranks)
    return load_and_verify(path, model, optimizer)


@torch.no_grad()
def load_and_verify(path: Path, model: Model, optimizer: torch.optim.Optimizer | None = None) -> Loaded:
    """As load, from the checkpoint at `path`, whose files somebody has just checked: find_intact, say."""
    ranks = all_ranks()
    manifest, saved = read_manifest(path), saved_tensors(path)
    if optimizer is not None and optimizer_names(saved):
        require_same_groups(optimizer, manifest["options"])
        # An optimiser that has not stepped has no moments to read into.
        make_state(optimizer)
    held = pieces(model, optimizer)
    sources = find_sources(held, saved)
    require_same_model(held, sources, saved, optimizer is not None, ranks)
    # A rank's generators go on only where it holds what it held: elsewhere its place means something else.
    same = manifest["layout"] == ranks.everyones(layout_of(held))
    generators = pieces_to_load({name: of_one.size for name, of_one in saved.items()}, ranks.r if same else 0)
    wanted = {**{name: held[name] for name in sources}, **generators}
    ranks.each(lambda: read_pieces(path, wanted, sources, saved))
    for name in held.keys() - sources.keys():  # a parameter that no step had touched, so that nothing was kept of it
        for piece in held[name]:
            piece.tensor.zero_()
    if optimizer is not None:
        set_options(optimizer, manifest["options"])
        accept(optimizer)
    ranks.each(lambda: restore(generators))
    return Loaded(path, manifest["step"], manifest["extra"], same)


# Which one

def find_intact(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The last intact checkpoint of the run that wrote last into `folder`, or the checkpoint that `folder` is; None
    where there is none at all. And what a reader has to hear of it, a sentence each. Collective; it reads all files.

    DamagedCheckpoint where none is intact, and where `folder` is a checkpoint itself that is not.
    """
    finish()
    ranks, folder, wrong = all_ranks(), Path(folder), []
    last = ranks.first(lambda: find(folder, missing_ok=True))
    if last is None:
        return None, []
    runs = ranks.first(lambda: {path: origin(path).run for path in complete_checkpoints(last.parent)})
    run, choices = None, [last] if last == folder else [*reversed(runs)]
    for path in choices:
        if run is not None and runs.get(path) not in (run, None):
            continue  # another run's is no earlier state of this one
        run = run or runs.get(path)
        try:
            verify(path, ranks)
        except DamagedCheckpoint as error:
            wrong.append((path, error))
            continue
        return path, describe_damage(path, wrong)
    raise DamagedCheckpoint("; ".join(str(error) for _, error in wrong) + ". Expected an intact checkpoint")


def describe_damage(path: Path, wrong: Sequence[tuple[Path, DamagedCheckpoint]]) -> list[str]:
    """What was passed over on the way to `path`, and what that costs."""
    if not wrong:
        return []
    first, last = step_of(path) + 1, max(step_of(other) for other, _ in wrong)
    which = f"step {first} is" if last == first else f"steps {first} to {last} are"
    lost = f"{which} lost and will be taken again" if last >= first else "no step is lost"
    return [f"{other.name} is damaged and is passed over: {error}" for other, error in wrong] + [
        f"on from {path}, which is intact: {lost}"]


def verify(path: Path, ranks: RankGroup) -> None:
    """DamagedCheckpoint, on all ranks, if one file is not as it was written. Each rank reads its share."""
    names = ranks.first(lambda: sorted(read_manifest(path)["files"]))
    # Every file is read once by somebody, and not by each rank: reading is what takes the time.
    found = ranks.each(lambda: problems_of(path, names[ranks.r::ranks.n]))
    problems = [problem for of_rank in found for problem in of_rank]
    if problems:
        raise DamagedCheckpoint("; ".join(problems))


# The same model

def optimizer_names(names: Sequence[str] | Mapping[str, Any]) -> set[str]:
    """Of `names`, those of the optimiser's state: NAME.key, where NAME alone is a tensor's name, too."""
    return {name for name in names if name.rpartition(".")[0] in names}


def find_sources(held: State, saved: Saved) -> dict[str, str]:
    """For each name that is held, the one to read it from: its own, where that was saved.

    A 32-bit copy of a 16-bit parameter is read from the parameter where none was saved, and a parameter from the copy
    where one was saved and none is held. What an optimiser keeps of a parameter it has not touched is read nowhere.
    """
    sources = {}
    for name in held:
        parameter, _, key = name.rpartition(".")
        if parameter in held and key == MASTER and name not in saved:
            sources[name] = parameter
        elif f"{name}.{MASTER}" in saved and f"{name}.{MASTER}" not in held:
            sources[name] = f"{name}.{MASTER}"
        elif name in saved or parameter not in held or any(each.startswith(f"{parameter}.") for each in saved):
            sources[name] = name
    return sources


def require_same_model(held: State, sources: Mapping[str, str], saved: Saved, with_optimizer: bool, ranks: RankGroup
                       ) -> None:
    """ValueError, the same on all ranks, with names and shapes that differ."""
    missing = {source for source in sources.values() if source not in saved}
    different = {f"{name} has shape {list(saved[source].size)} and the model's {list(held[name][0].shape)}"
                 for name, source in sources.items()
                 if source in saved and held[name] and tuple(saved[source].size) != held[name][0].shape}
    everyones = ranks.everyones((missing, different, {*held, *sources.values()}))
    missing, different, known = (sorted(set().union(*found)) for found in zip(*everyones))
    optimizers = optimizer_names(saved)
    too_many = [name for name in saved if name not in known and not name.startswith(PREFIX)
                and not name.endswith(f".{MASTER}") and (with_optimizer or name not in optimizers)]
    problems = []
    if missing:
        problems.append(f"it lacks {first_names(missing)}")
    if too_many:
        problems.append(f"it has {first_names(too_many)}, which the model has not")
    if different:
        problems.append("; ".join(different[:4]))
    if problems:
        raise ValueError("the checkpoint is one of another model: " + "; ".join(problems)
                         + ". Expected the same names and shapes")


def first_names(names: Sequence[str]) -> str:
    """The first four of `names`, and how many more there are: what an error can show of thousands."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# Learning rates and the like

def require_same_groups(optimizer: torch.optim.Optimizer, options: Sequence[dict] | None) -> None:
    """ValueError where nobody can say which group has which options."""
    if options and len(options) != len(optimizer.param_groups) and any(each != options[0] for each in options):
        raise ValueError(f"the optimiser has {len(optimizer.param_groups)} groups of parameters, and {len(options)} "
                         "with different options were saved: expected as many")


def set_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]] | None) -> None:
    """Give the optimizer's groups the options that were saved: learning rate, betas and so on, group by group."""
    groups = optimizer.param_groups
    if options and len(options) != len(groups):
        options = [options[0]] * len(groups)  # another layout has other groups, and all of them had the same
    for group, saved in zip(groups, options or ()):
        for key, value in saved.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


# What an optimiser needs before and after

def parts_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Itself, or the optimisers that it is made of: a hybrid one has one for each group that shards."""
    return list(getattr(optimizer, "parts", [optimizer]))


@torch.no_grad()
def make_state(optimizer: torch.optim.Optimizer) -> None:
    """An optimiser has no state before its first step: take one that changes nothing, so that there is a place to load
    to. Gradients are kept.
    """
    for part in parts_of(optimizer):
        inner = part.inner if isinstance(part, ZeroOptimizer) else part
        if not any(inner.state.values()):
            step_that_changes_nothing(inner)


def step_that_changes_nothing(optimizer: torch.optim.Optimizer) -> None:
    """Gradients of zeros, and a learning rate of 0, which also takes care of weight decay."""
    groups = optimizer.param_groups
    trained = [p for group in groups for p in group["params"] if p.requires_grad]
    gradients, rates = [p.grad for p in trained], [group["lr"] for group in groups]
    for p in trained:
        p.grad = torch.zeros_like(p)
    for group in groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    try:
        optimizer.step()
    finally:
        for p, gradient in zip(trained, gradients):
            p.grad = gradient
        for group, rate in zip(groups, rates):
            group["lr"] = rate


def accept(optimizer: torch.optim.Optimizer) -> None:
    """The pieces have been filled: 32-bit copies of 16-bit parameters have been, too, and are not to be made anew."""
    for part in parts_of(optimizer):
        if isinstance(part, ZeroOptimizer):
            for bucket in part.buckets:
                bucket.remember_versions()
