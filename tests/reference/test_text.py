"""Claims about the text and the batches: real, split cleanly, and the same however it is dealt to ranks."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.reference import batches, held_out_rows, load_text, split_text, unigram_entropy

ALPHABET = torch.arange(1000)  # every token names its own place in the text


def shards(step, world_size, **options):
    return [batches(step, rank, world_size, **options) for rank in range(world_size)]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 9), st.sampled_from(["train", "held_out"]))
def test_the_shards_of_all_ranks_are_the_batch_of_one_process(step, world_size, more_rows, split):
    options = {"batch_size": world_size + more_rows, "sequence_length": 12, "split": split}
    whole = batches(step, **options)
    for part, dealt in zip(whole, zip(*shards(step, world_size, **options), strict=True), strict=True):
        assert torch.equal(torch.cat(dealt), part)


@pytest.mark.parametrize("world_size, rows", [(1, [10]), (2, [5, 5]), (3, [4, 3, 3]), (4, [3, 3, 2, 2])])
def test_rows_are_dealt_as_tensor_split_deals_them(world_size, rows):
    assert [len(inputs) for inputs, _ in shards(0, world_size, batch_size=10)] == rows


def test_targets_are_inputs_shifted_by_one_and_held_out_rows_are_spread_from_the_first_token_to_the_last():
    for inputs, targets in (batches(5, tokens=ALPHABET, batch_size=32, sequence_length=20),
                            held_out_rows(32, 20, ALPHABET)):
        assert inputs.shape == (32, 20) and inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
    assert inputs[0, 0] == 900 and targets[-1, -1] == 999
    assert held_out_rows(1, 20, ALPHABET)[0].shape == (1, 20)


def test_the_same_step_and_seed_always_give_the_same_batch_and_others_another_whatever_else_is_drawn():
    batch = batches(3, 1, 2, seed=7)[0]
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert torch.equal(batches(3, 1, 2, seed=7)[0], batch) and torch.equal(torch.get_rng_state(), before)
    others = [batches(4, 1, 2, seed=7), batches(3, 0, 2, seed=7), batches(3, 1, 2, seed=8), batches(7, 1, 2, seed=3)]
    assert not any(torch.equal(other, batch) for other, _ in others)


def test_training_and_held_out_text_do_not_overlap_and_all_of_both_is_used():
    for split, tokens in (("train", range(900)), ("held_out", range(900, 1000))):
        parts = [torch.cat(batches(step, tokens=ALPHABET, split=split, sequence_length=20)) for step in range(200)]
        assert torch.cat(parts).unique().tolist() == list(tokens)


def test_the_text_is_english_and_no_paragraph_of_its_held_out_part_stands_in_the_training_text():
    text = bytes(load_text().tolist()).decode()
    assert len(text) > 200_000 and text.count(" the ") > 2_000
    train, held_out = (bytes(part.tolist()).decode(errors="replace") for part in split_text(load_text()))
    train = " ".join(train.split())
    paragraphs = [" ".join(paragraph.split()) for paragraph in held_out.split("\n\n")]
    sentences = [paragraph for paragraph in paragraphs if len(paragraph) > 60]
    assert len(sentences) > 50 and not [sentence for sentence in sentences if sentence in train]


def test_another_process_draws_the_same_batch_and_importing_loads_neither_the_text_nor_matplotlib():
    code = (
        "import sys, course_lib.reference as reference;"
        "print({'matplotlib', 'pydoc_data.topics'} & set(sys.modules), reference.batches(9)[0].tolist())"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed == f"set() {batches(9)[0].tolist()}\n"


@pytest.mark.parametrize("tokens, nats", [([5] * 8, 0.0), ([0, 1, 2, 3] * 5, math.log(4)),
                                          ([0, 0, 0, 1], math.log(4) - 0.75 * math.log(3))])
def test_unigram_entropy_equals_the_formula(tokens, nats):
    assert unigram_entropy(torch.tensor(tokens)) == pytest.approx(nats, abs=1e-12)


@pytest.mark.parametrize("write, message", [
    (lambda file: None, "which is not found from"),
    (lambda file: file.mkdir(), "which is not a file"),
    (lambda file: file.write_bytes(b""), "which is empty"),
    (lambda file: file.write_bytes(b"x" * 649),
     r"\(649 bytes\) is too short for sequence_length=65: .* 66 tokens each, 660 in all"),
])
def test_a_file_that_cannot_be_used_is_refused_by_its_path(tmp_path, write, message):
    write(tmp_path / "book.txt")
    with pytest.raises(ValueError, match=message) as caught:
        load_text(tmp_path / "book.txt", sequence_length=65)
    assert str(tmp_path / "book.txt") in str(caught.value)


@pytest.mark.parametrize("arguments, message", [
    ({"rank": 4, "world_size": 4}, "got rank=4, world_size=4"),
    ({"rank": -1}, "got rank=-1, world_size=1"),
    ({"world_size": 0}, "got rank=0, world_size=0"),
    ({"world_size": 3, "batch_size": 2}, "at least world_size, got batch_size=2, world_size=3"),
    ({"batch_size": 0}, "got batch_size=0, world_size=1"),
    ({"step": -1}, "got step=-1"),
    ({"seed": -1}, "seed=-1"),
    ({"sequence_length": 0}, "sequence_length=0"),
    ({"split": "test"}, r"split must be one of \('train', 'held_out'\), got 'test'"),
    ({"tokens": "book.txt"}, r"as load_text\(path\) returns, got 'book.txt'"),
    ({"tokens": torch.zeros(3, 4)}, r"got torch.float32 of shape \(3, 4\)"),
    ({"tokens": torch.zeros(0, dtype=torch.uint8)}, r"got torch.uint8 of shape \(0,\)"),
    ({"tokens": ALPHABET, "sequence_length": 900}, r"1,000 tokens\) is too short for sequence_length=900"),
])
def test_a_batch_that_does_not_exist_is_refused_with_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        batches(**{"step": 0, **arguments})


def test_a_readers_own_file_is_read_byte_by_byte_and_named_in_the_environment_stands_for_the_topics(
        tmp_path, monkeypatch):
    file, topics = tmp_path / "other.txt", load_text()
    file.write_bytes("ein Übermut\r\n".encode() * 500)
    assert bytes(load_text(file)) == bytes(load_text(str(file))) == file.read_bytes()
    assert batches(0, tokens=load_text(file))[0].shape == (16, 64)
    monkeypatch.setenv("COURSE_TEXT", str(file))
    assert bytes(load_text()) == file.read_bytes() and not torch.equal(load_text(), topics)
    for rows in (batches(0, batch_size=4, sequence_length=16)[0], held_out_rows(2, 16)[0]):
        assert all(bytes(row.to(torch.uint8)) in file.read_bytes() for row in rows)
    monkeypatch.setenv("COURSE_TEXT", str(tmp_path / "missing.txt"))
    with pytest.raises(ValueError, match="missing.txt"):
        batches(0, batch_size=4)
    monkeypatch.delenv("COURSE_TEXT")
    assert torch.equal(load_text(), topics)
