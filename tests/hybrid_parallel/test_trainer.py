"""HybridTrainer and the command line: losses, metrics, and going on where another run stopped."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from course_lib import train
from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.hybrid_parallel import HybridTrainer, LearningRate, ParallelLayout
from course_lib.hybrid_parallel.checkpoints import describe_data
from course_lib.reference import GPT
from course_lib.runtime import launch
from tests.hybrid_parallel.cases import CONFIG, off


def trained(text, steps, **options):
    layout = ParallelLayout.from_string(text)
    return launch(lambda: HybridTrainer(CONFIG, layout, batch_size=12, **options).train(steps, progress=False),
                  world_size=layout.world_size)


def test_every_rank_reports_the_same_losses_and_bytes_whatever_the_layout_and_draws_them(monkeypatch):
    one = trained("dp1", 4, learning_rate=LearningRate(3e-3, 1, 4))[0]
    for report in trained("dp2,tp2", 4, learning_rate=LearningRate(3e-3, 1, 4), sequence_parallel=True):
        assert off(report.losses, one.losses) < 1e-4
        assert set(report.bytes_by_axis) == {"dp", "tp", "world"}
        assert report.memory_by_kind["parameters"] < 0.7 * one.memory_by_kind["parameters"]
        assert report.steps[0].bytes_by_axis is None and report.steps[1].bytes_by_axis is not None
    assert one.losses[-1] < one.losses[0] and one.bytes_by_axis == {}
    assert all(0 < step.mfu < 2 for step in one.steps)
    assert one.png().startswith(b"\x89PNG") and "4 steps" in one.finding()
    monkeypatch.setattr("course_lib.pictures.painter.to_png", lambda figure: figure)
    loss, sent, held = report.png().axes
    assert list(zip(*loss.lines[0].get_data())) == list(enumerate(report.losses))
    for axes, sizes in ((sent, report.bytes_by_axis), (held, report.memory_by_kind)):
        assert [bar.get_width() for bar in axes.patches][::-1] == [size for size in sizes.values() if size]
    assert one.alternative().startswith(f"{one}. The loss went from {one.losses[0]:.2f} to ")


def test_bf16_stays_near_fp32_and_so_does_a_pipeline_of_it():
    exact = trained("dp1", 6)[0].losses
    for text in ("dp1", "pp2"):
        rounded = trained(text, 6, precision="bf16", num_microbatches=2)[0].losses
        assert rounded != exact and off(rounded, exact) < 5e-3


@pytest.mark.parametrize("options, said", [
    ({"layout": "dp2", "batch_size": 3}, "batch_size=3 with dp=2 and num_microbatches=1: expected a multiple of 2"),
    ({"layout": "dp2", "num_microbatches": 4}, "batch_size=12 with dp=2 and num_microbatches=4: .* a multiple of 8"),
    ({"layout": "cp2", "config": replace(CONFIG, sequence_length=10)}, "10 tokens in a row over cp=2: expected a mult"),
    ({"layout": "dp2,zero3", "schedule": "ZB-H1"}, "zero_stage=3 with the schedule 'ZB-H1', which cuts backward"),
    ({"layout": "dp2,ep2"}, "ep=2 for a model with no experts: expected moe_gpt"),
    ({"layout": "dp2,ep2", "experts": (3, 64)}, r"ep=2 for a model with \[3\] experts: expected moe_gpt"),
    ({"layout": "tp2,etp2", "experts": (2, 31)}, "etp=2 for experts of width 31 on tokens of 16 numbers: expected a"),
    ({"layout": "tp2", "experts": (2, 64), "config": replace(CONFIG, sequence_length=15)},
     "15 tokens of a row on each rank, over tp=2 with experts: expected a multiple of 2"),
    ({"layout": "dp2", "schedule": "2f2b"}, "schedule='2f2b': expected one of naive, GPipe, 1F1B"),
    ({"layout": "dp2", "precision": "int4"}, "precision='int4': expected one of fp32, bf16"),
    ({"layout": "dp4"}, "is one of 4 ranks, and the world has 2"),
])
def test_what_cannot_be_trained_is_refused_with_what_was_expected(options, said):
    def body(layout, config=CONFIG, batch_size=12, experts=(), **more):
        if experts:
            number, width = experts
            more["make_model"] = lambda: moe_gpt(GPT(config), number, ffn_hidden_size=width, group=SINGLE,
                                                 tokens_group=SINGLE)
        with pytest.raises(ValueError, match=said):
            HybridTrainer(config, ParallelLayout.from_string(layout), batch_size=batch_size, **more)

    launch(body, **options, world_size=2)


def test_a_checkpoint_tells_a_text_from_one_with_another_letter_anywhere_or_one_more():
    text = torch.arange(2000) % 7
    others = [text.index_fill(0, torch.tensor([place]), 9) for place in (0, 1, 778, 1999)] + [torch.cat([text, text])]
    known = {describe_data(tokens, 12, 16, 0)["text"] for tokens in (text, text.clone(), *others)}
    assert len(known) == 1 + len(others)


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine():
    rate = LearningRate(peak=1.0, warmup_steps=3, total_steps=11, final=0.1)
    assert [round(rate(step), 6) for step in (0, 2, 3, 7, 11, 99)] == [0.25, 0.75, 1.0, 0.55, 0.1, 0.1]
    assert LearningRate(0.5)(10**6) == 0.5
    with pytest.raises(ValueError, match="total_steps=3 with warmup_steps=3: expected more"):
        LearningRate(1.0, 3, 3)


def test_the_command_line_trains_writes_metrics_and_a_picture(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    words = ["--layout", "pp2", "--micro-batches", "2", "--steps", "3", "--text", str(text), "--layers", "2",
             "--sequence-length", "16", "--metrics", str(tmp_path / "m.jsonl"), "--plot", str(tmp_path / "p.png")]
    report = train.main(words)
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == report.losses
    assert [json.loads(line) for line in lines] == [asdict(step) | {"tokens_per_s": step.tokens_per_s}
                                                    for step in report.steps]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "pp2 on 2 ranks: loss" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        train.main(["--layout", "dp2,xx"])
