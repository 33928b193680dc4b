"""What a checkpoint is good for, as sub-commands: inspect, evaluate, sample and export.

DIR is a folder of checkpoints, of which the last is taken, or one checkpoint. All take one process and its memory,
whatever the layout was. It may be a stranger's: nothing in it is run, and a link in it is not followed.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from course_lib import checkpoint
from course_lib.checkpoint.folders import complete_checkpoints, origin
from course_lib.checkpoint.manifest import problems_of
from course_lib.checkpoint.reading import saved_tensors
from course_lib.command_line import Parser, above_zero, whole
from course_lib.reference import GPT, GPTConfig
from course_lib.reference.text import load_text
from course_lib.reference.training import evaluate as evaluate_alone
from course_lib.train.arguments import PROGRAM, make_model, saved_model

ROWS = 64


# inspect

def inspect(arguments: argparse.Namespace) -> None:
    """Every checkpoint in DIR: its run, step, layout and sizes, and whether its files are as they were written. Nothing
    in them is run.
    """
    last = checkpoint.find(arguments.folder)
    paths = [last] if last == arguments.folder else complete_checkpoints(arguments.folder)
    runs = {origin(path).run for path in paths}
    print(f"{arguments.folder}: {count(len(paths), 'checkpoint')} of {count(len(runs), 'run')}, oldest first")
    for path in paths:
        print("\n".join(describe(path)))


def describe(path: Path) -> list[str]:
    """Some lines about the checkpoint at `path`, which reads all of it."""
    problems = problems_of(path)
    try:
        manifest = checkpoint.read_manifest(path)
        extra = manifest["extra"]
        config, experts = saved_model(path, extra) if extra.get("model") else (None, None)
        if not problems:
            saved_tensors(path)
    except ValueError as error:
        return [show(f"{path.name}  DAMAGED: {error}")]
    when = datetime.fromtimestamp(origin(path).written_ns / 1e9)
    lines = [f"{path.name}  step {manifest['step']}  run {origin(path).run}  {when:%Y-%m-%d %H:%M:%S}  "
             f"{layout_in(extra)} on {count(max(1, len(manifest['layout'])), 'rank')}  "
             + ("intact" if not problems else "DAMAGED: " + "; ".join(problems))]
    size = sum(file["bytes"] for file in manifest["files"].values())
    lines.append(f"    {size:,} bytes in {count(len(manifest['files']), 'file')}")
    if config:
        named = {**asdict(config), **({"experts": experts} if experts else {})}
        lines.append("    model: " + ", ".join(f"{name} {value}" for name, value in named.items()))
    return [show(line) for line in lines]


def layout_in(extra: Mapping[str, Any]) -> str:
    """The layout that a checkpoint says it was saved under."""
    named = extra.get("layout")
    return show(named) if isinstance(named, str) else "no layout named"


def show(line: str) -> str:
    """A line with a stranger's words in it, of which a terminal would take some for orders."""
    return "".join(letter if letter.isprintable() else "?" for letter in line[:2000])


def count(number: int, what: str) -> str:
    """A number and its noun, with an s where it is not 1."""
    return f"{number} {what}{'s' * (number != 1)}"


# The model of a checkpoint

def find_model(folder: Path) -> tuple[Path, GPTConfig, Mapping | None]:
    """The last checkpoint in `folder`, the model's sizes, and its experts. ValueError where it says none."""
    path = checkpoint.find(folder)
    config, experts = saved_model(path, checkpoint.read_manifest(path)["extra"])
    if config.vocab_size < 256:
        raise ValueError(f"{path} has a vocabulary of {config.vocab_size}: expected one with all 256 bytes")
    return path, config, experts


def plain_model(folder: Path) -> GPT:
    """The model in the last checkpoint of `folder`, whole, in this process, in evaluation mode."""
    path, config, experts = find_model(folder)
    state = checkpoint.read_state_dict(path)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    # The manifest may name a model of any size: none is made that the files do not hold.
    most = max((size for shape in shapes.values() for size in shape), default=0)
    sizes = (config.hidden_size, config.vocab_size, config.sequence_length, experts["num_experts"] if experts else 1)
    fits = config.num_layers <= len(state) and max(sizes) <= most
    if fits:
        with torch.device("meta"):
            fits = {name: each.shape for name, each in make_model(config, experts).state_dict().items()} == shapes
    if not fits:
        raise ValueError(f"{path} has tensors of another model than its manifest names")
    model = make_model(config, experts)
    model.load_state_dict(state)
    return model.eval()


# evaluate

def evaluate(arguments: argparse.Namespace) -> None:
    """The mean loss on text that the run was not trained on."""
    path, config, _ = find_model(arguments.folder)
    model = plain_model(path)
    # Attention makes squares of a row, a few at a time and for each of 8 rows.
    needed, free = 8 * 3 * 4 * config.num_heads * config.sequence_length**2, psutil.virtual_memory().available
    if needed > free:
        raise ValueError(f"rows of {config.sequence_length:,} tokens need {needed / 1e9:,.0f} GB for attention: "
                         f"expected at most {free / 1e9:,.0f} GB, which are free")
    tokens = load_text(arguments.text, config.sequence_length) if arguments.text else None
    loss = evaluate_alone(model, tokens=tokens, num_rows=arguments.rows)
    print(f"{path}: loss {loss:.6f} nats per token ({loss / math.log(2):.4f} bits) on {arguments.rows} held-out rows "
          f"of {config.sequence_length} tokens")


# sample

def sample(arguments: argparse.Namespace) -> None:
    """What the model writes after a text, byte by byte."""
    given = arguments.prompt.encode()
    if not given:
        raise ValueError("an empty text: expected at least one letter to go on from")
    written = continue_text(plain_model(arguments.folder), given, arguments.tokens, arguments.temperature,
                            arguments.seed)
    print(written.decode(errors="replace"))


@torch.no_grad()
def continue_text(model: GPT, given: bytes, num_tokens: int, temperature: float, seed: int) -> bytes:
    """`given`, and num_tokens bytes that are drawn after it: temperature 1 as often as the model says, less is bolder.
    """
    generator, text = torch.Generator().manual_seed(seed), list(given)
    for _ in range(num_tokens):
        logits, _ = model(torch.tensor([text[-model.config.sequence_length:]]))  # (1, T, V)
        shares = (logits[0, -1, :256].double() / temperature).softmax(-1)
        text.append(int(torch.multinomial(shares, 1, generator=generator)))
    return bytes(text)


# export

def export(arguments: argparse.Namespace) -> None:
    """The plain model's tensors in one safetensors file, which other programs read."""
    if not arguments.file.absolute().parent.is_dir():
        raise ValueError(f"{arguments.file}: there is no folder {arguments.file.parent}: expected one that is there")
    if arguments.file.is_symlink():  # in a stranger's folder, to the reader's own file
        raise ValueError(f"{arguments.file}: that is a link, whose target would be written over: expected a new name")
    path = checkpoint.find(arguments.folder)
    checkpoint.export_safetensors(path, arguments.file)
    print(f"{path} -> {arguments.file}: {arguments.file.stat().st_size:,} bytes")


# The words

COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "inspect": inspect, "evaluate": evaluate, "sample": sample, "export": export}


def parser() -> Parser:
    """The sub-commands and their options."""
    made = Parser(PROGRAM, description=__doc__.partition("\n\n")[0])
    commands = made.add_subparsers(dest="command", required=True, parser_class=Parser)
    of = {name: commands.add_parser(name, help=does.__doc__, description=does.__doc__)
          for name, does in COMMANDS.items()}
    for command in of.values():
        command.add_argument("folder", type=Path, metavar="DIR")
    of["evaluate"].add_argument("--text", type=Path, metavar="FILE", help="its last tenth (default: of Python's help)")
    of["evaluate"].add_argument("--rows", type=whole(1), default=ROWS, help=f"of the text (default: {ROWS})")
    of["sample"].add_argument("prompt", metavar="TEXT")
    of["sample"].add_argument("--tokens", type=whole(1), default=100, metavar="N", help="to write (default: 100)")
    of["sample"].add_argument("--temperature", type=above_zero, default=0.8, help="(default: 0.8)")
    of["sample"].add_argument("--seed", type=whole(0), default=0)
    of["export"].add_argument("file", type=Path, metavar="FILE.safetensors")
    return made


def main(words: Sequence[str]) -> None:
    """Run one sub-command; a mistake of the reader's ends it with one line."""
    command = parser()
    arguments = command.parse_args(words)
    try:
        COMMANDS[arguments.command](arguments)
    except (ValueError, OSError) as error:
        command.error(" ".join(str(error).split()))
