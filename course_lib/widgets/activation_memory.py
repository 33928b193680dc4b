"""ActivationMemory: what one layer keeps for its backward pass, term by term, on each rank, and what brings it down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from course_lib import facts
from course_lib.costs.flops import RECOMPUTE, ActivationTerm, activation_bytes_per_layer, activation_terms
from course_lib.pictures.scene import Scene, Sheet, axis, bars, legend, round_ticks
from course_lib.pictures.units import BYTES_IN, gigabytes, human_bytes
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, slider

# Whose layers are alike (experts come with others that have none) and whose heads eight ranks share.
MODELS = [model.name for model in facts.MODELS if (shape := model.shape) and shape.num_experts == 1
          and shape.num_heads % 8 == shape.num_kv_heads % 8 == 0]
SPLITS: dict[str, tuple[int, bool]] = {  # -> ranks of tensor parallelism, sequence parallelism
    "nothing split": (1, False),
    "tensor parallel, t = 4": (4, False), "tensor and sequence parallel, t = 4": (4, True),
    "tensor parallel, t = 8": (8, False), "tensor and sequence parallel, t = 8": (8, True),
}
KEPT = {"none": "everything kept", "selective": "attention's core recomputed", "full": "whole layers recomputed"}
LENGTHS = [2**k for k in range(10, 18)]  # what the slider offers; Python takes any number
LONGEST = 2**20
# Roles: s x s matrices; split along heads or width; the rest. None is blue: blue is the way that is shown, among the
# bars below, and parameters in the chapter's other pictures, as orange is gradients.
CORE, SPLIT, WHOLE = "activations", "weights", "late"


@dataclass(frozen=True)
class LayerTerm:
    """A term of a layer: its bytes where nothing is split, what a rank keeps of it, and its role in the picture."""

    name: str
    num_bytes: int
    kept: int
    role: str


@dataclass(frozen=True)
class Layer:
    """All that there is to see, of one row of `tokens` in 16 bits; `ways`: bytes of a layer in each way."""

    model: str
    tokens: int
    split: str
    recompute: str
    terms: tuple[LayerTerm, ...]
    ways: tuple[tuple[str, int, bool], ...]  # (name, bytes, whether it is what is shown)

    @property
    def total(self) -> int:
        return sum(term.kept for term in self.terms)

    @property
    def core(self) -> int:
        return sum(term.kept for term in self.terms if term.role == CORE)


def with_dropout(model: str) -> bool:
    """GPT-3's kind, whose positions are learned, was trained with it; Llama's was not."""
    return facts.model(model).shape.learned_positions


def bytes_of_layer(model: str, tokens: int, split: str, recompute: str) -> int:
    t, sequence_parallel = SPLITS[split]
    return activation_bytes_per_layer(facts.model(model).shape, 1, tokens, recompute=recompute,
                                      dropout=with_dropout(model), tensor_parallel=t,
                                      sequence_parallel=sequence_parallel)


@cache
def layer(model: str, tokens: int, split: str, recompute: str) -> Layer:
    """What the widget shows for these parameters."""
    t, sequence_parallel = SPLITS[split]
    terms = activation_terms(facts.model(model).shape, 1, tokens, dropout=with_dropout(model))

    def kept_bytes(number: int, term: ActivationTerm) -> int:
        if recompute == "full" and number:  # of a layer that is recomputed only its input is kept, the first term
            return 0
        return term.bytes_on_rank(recompute, t, sequence_parallel)

    held = tuple(LayerTerm(term.name, term.num_bytes, kept_bytes(number, term),
                      CORE if term.core else SPLIT if term.by_tensor or sequence_parallel else WHOLE)
                 for number, term in enumerate(terms))
    return Layer(model, tokens, split, recompute, held, comparison_rows(model, tokens, split, recompute))


def comparison_rows(model: str, tokens: int, split: str, recompute: str) -> tuple[tuple[str, int, bool], ...]:
    """The rows of the paper's table 2: t is the chosen one, 8 where nothing is split."""
    t = SPLITS[split][0] if SPLITS[split][0] > 1 else 8
    tensor, both = f"tensor parallel, t = {t}", f"tensor and sequence parallel, t = {t}"
    rows = (("nothing split", "nothing split", "none"), (tensor, tensor, "none"), ("... and sequence", both, "none"),
            ("tensor, core recomputed", tensor, "selective"), ("... and sequence, core", both, "selective"),
            ("layers recomputed", "nothing split", "full"))
    return tuple((name, bytes_of_layer(model, tokens, which, again), (which, again) == (split, recompute))
                 for name, which, again in rows)


LEFT, RIGHT, TOP, ROW = 230, 745, 8, 19


def scene_of(**settings: Any) -> Scene:
    """A bar for each term, what nothing split would keep behind it; below, the ways beside one another."""
    sheet, shown = Sheet(), layer(**settings)
    longest = max(term.num_bytes for term in shown.terms)
    unit, bottom = (RIGHT - LEFT) / longest, TOP + len(shown.terms) * ROW
    for number, term in enumerate(shown.terms):
        add_term(sheet, term, TOP + number * ROW, unit)
    ending = "MB" if longest < BYTES_IN["GB"] else "GB"  # as the words beside the longest bars
    end = longest / BYTES_IN[ending]
    axis(sheet, LEFT, RIGHT, bottom + 4, end, [(at, f"{at:,.4g}") for at in round_ticks(end)], f"{ending} of one layer")
    entries = [(SPLIT, "split over the ranks"), (WHOLE, "whole on every rank"), (CORE, "s × s matrices"),
               ("room", "if nothing were split or recomputed")]
    legend(sheet, 60, bottom + 54, entries)
    sheet.text("compared", "label", 60, bottom + 82, "One layer, on each rank")
    rows = [(name, num_bytes, human_bytes(num_bytes), present) for name, num_bytes, present in shown.ways]
    bars(sheet, LEFT, RIGHT, bottom + 94, ROW, rows)
    finding, detail = texts(shown)
    asked = f"{shown.model}, {shown.tokens:,} tokens, {shown.split}, {KEPT[shown.recompute]}"
    terms = "; ".join(f"{term.name} {human_bytes(term.kept)}" for term in shown.terms)
    return sheet.scene("ActivationMemory", f"{shown.model} s={shown.tokens} {shown.split} {shown.recompute}", asked,
                       finding, detail, bottom + 94 + ROW * len(rows) + 8, f"Terms: {terms}")


def add_term(sheet: Sheet, term: LayerTerm, y: float, unit: float) -> None:
    tall = ROW - 5
    sheet.text(f"{term.name} is", "small", LEFT - 9, y + tall / 2, term.name, "end")
    sheet.rect(f"{term.name} in all", "room", LEFT, y, unit * term.num_bytes, tall)
    sheet.rect(f"{term.name} kept", term.role, LEFT, y, unit * term.kept, tall, hint=f"{term.name}: {term.kept:,} B")
    words = part_of(term.kept, term.num_bytes) if term.kept else "nothing"
    sheet.text(f"{term.name} amounts to", "small", LEFT + unit * term.num_bytes + 8, y + tall / 2, words)


def part_of(kept: int, num_bytes: int) -> str:
    """100.7 of 805.3 MB: the words stand beside the bar of all bytes, and would be read as its length."""
    in_all, part = human_bytes(num_bytes), human_bytes(kept)
    number, unit = part.split()
    return in_all if kept == num_bytes else f"{number if in_all.endswith(f' {unit}') else part} of {in_all}"


def texts(shown: Layer) -> tuple[str, str]:
    """Headline and detail."""
    layers = facts.model(shown.model).shape.num_layers
    unsplit = bytes_of_layer(shown.model, shown.tokens, "nothing split", "none")
    finding = (f"{human_bytes(shown.total)} per layer on each rank, {shown.total / unsplit:.1%} of "
               f"{human_bytes(unsplit)}")
    core = (f"{shown.core / shown.total:.0%} of it are s × s matrices" if shown.core else "no s × s matrix is kept")
    return finding, f"{core}; {gigabytes(shown.total * layers)} in {layers} layers, of one row in 16 bits"


class ActivationMemory(Explorable, draw=scene_of):
    """What one layer of `model` keeps for one row of `tokens`: by `split`, a name of SPLITS, and `recompute`, "none",
    "selective" (attention's s x s matrices are recomputed, or never stored) or "full"."""

    model = OneOf("GPT-3", MODELS)
    tokens = WholeNumber(2048, 1, LONGEST)
    split = OneOf("nothing split", SPLITS)
    recompute = OneOf("none", RECOMPUTE)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("model", "model", MODELS),
                slider("tokens", "tokens", LENGTHS, settings["tokens"], "{:,}".format),
                chooser("split", "split", SPLITS),
                chooser("memory", "recompute", RECOMPUTE, KEPT.__getitem__)]
