"""A mistake in what is asked for is one line in the reader's words, and no rank has started."""

import pytest

from course_lib.train import main, run

SMALL = ["--layers", "2", "--hidden-size", "16", "--heads", "2", "--sequence-length", "16", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch, tmp_path):
    """A launch would be one too many."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "launch", lambda *_, **__: pytest.fail("ranks were started"))
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "file").write_text("a file")


MISTAKES = {
    "--layout dp2,xx": "'xx' in the layout 'dp2,xx': expected dp, pp, cp, tp, ep",
    "--layout pp8": "pp=8 needs 8 stages, and a model of 2 layers has at most 5: a stage for each layer, the embedding",
    "--layout pp4 --schedule zb-v": "pp=4 with 2 stages for each rank needs 8 stages, and a model of 2 layers",
    "--layout tp4": "--layout tp4: 2 heads over 4 ranks: expected a number that 4 divides",
    "--layout tp3 --heads 3 --hidden-size 24": "256 embeddings over 3 ranks: expected a number that 3 divides",
    "--heads 3": "--hidden-size must be a multiple of --heads, so that all heads have the same size: got --hidden-size",
    "--layout dp2 --batch-size 3": "--batch-size 3 with dp=2 and --micro-batches 1: expected a multiple of 2",
    "--layout pp2 --micro-batches 3": "--batch-size 8 with dp=1 and --micro-batches 3: expected a multiple of 3",
    "--layout cp3": "16 tokens in a row over cp=3: expected a multiple of 6",
    "--layout tp2 --sequence-length 15 --sequence-parallel": "over tp=2 with sequence_parallel: expected a multiple of",
    "--layout dp2,zero3 --schedule zb-h1": "zero 3 with the schedule 'ZB-H1', which cuts backward in two",
    "--layout dp2,ep2": "deals out experts over ep, and the model has none: expected --experts E",
    "--layout dp2,ep2 --experts 3": "--experts 3 --layout dp2,ep2: expected a number of experts that ep=2 divides",
    "--experts 2 --top-k 3": "--top-k 3 of 2 experts: expected 1 to 2",
    "--steps 0": "argument --steps: '0': expected a whole number of at least 1",
    "--batch-size none": "argument --batch-size: 'none': expected a whole number of at least 1",
    "--learning-rate -1": "argument --learning-rate: '-1': expected a number above 0",
    "--warmup 5 --decay-steps 5": "--decay-steps 5 with --warmup 5: expected more",
    "--text nowhere.txt": "--text must be a text file, got 'nowhere.txt', which is not found",
    "--text short.txt": "'short.txt' (9 bytes) is too short for --sequence-length 16",
    "--sequence-length 9999999": "is too short for --sequence-length 9999999",
    "--metrics nowhere/m.jsonl": "--metrics nowhere/m.jsonl: there is no folder nowhere",
    "--plot nowhere/p.png": "--plot nowhere/p.png: there is no folder nowhere",
    "--save file": "--save file: that is a file: expected a folder",
    "--overwrite": "--overwrite without --save DIR",
    "--save a --overwrite": "started again, which may have saved into a already: expected --resume a",  # by torchrun
    "--save a --resume a --overwrite": "--overwrite with --resume a: a run that goes on keeps its checkpoints",
    "--resume runs/typo": "--resume runs/typo: no such folder",
    "--resume .": "--resume .: it holds no checkpoint",
    "--save a --resume runs/typo": "--resume runs/typo: no such folder",
    "inspect runs/typo": "no complete checkpoint in 'runs/typo': no such folder",
    "sample runs/typo hello": "no complete checkpoint in 'runs/typo': no such folder",
    "export runs/typo nowhere/m": "nowhere/m: there is no folder nowhere",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_no_rank_starts(words, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(int("--save a --overwrite" == words)))
    given = words.split()
    with pytest.raises(SystemExit) as ended:
        main(given if given[0][0] != "-" else [*SMALL, *given])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and said.err.count("\n") == 1, said.err
    assert MISTAKES[words] in said.err and "Traceback" not in said.err
