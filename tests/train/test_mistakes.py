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


MISTAKES = [
    "--layout dp2,xx", "--layout pp8", "--layout pp4 --schedule zb-v", "--layout tp4",
    "--layout tp3 --heads 3 --hidden-size 24", "--heads 3", "--layout dp2 --batch-size 3",
    "--layout pp2 --micro-batches 3", "--layout cp3", "--layout tp2 --sequence-length 15 --sequence-parallel",
    "--layout dp2,zero3 --schedule zb-h1", "--layout dp2,ep2", "--layout dp2,ep2 --experts 3", "--experts 2 --top-k 3",
    "--steps 0", "--batch-size none", "--learning-rate -1", "--warmup 5 --decay-steps 5", "--text nowhere.txt",
    "--text short.txt", "--metrics nowhere/m.jsonl", "--plot nowhere/p.png", "--save file", "--overwrite",
    "--save a --resume a --overwrite", "--resume runs/typo", "--resume .", "--save a --resume runs/typo",
    "inspect runs/typo", "sample runs/typo hello", "export runs/typo nowhere/m",
]


def test_a_mistake_is_one_line_and_no_rank_starts(capsys, snapshot, monkeypatch, tmp_path):
    lines = []
    for words in (*MISTAKES, "--save a --overwrite"):
        given = words.split()
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(int(words == "--save a --overwrite")))  # by torchrun
        with pytest.raises(SystemExit) as ended:
            main(given if given[0][0] != "-" else [*SMALL, *given])
        said = capsys.readouterr()
        assert ended.value.code == 2 and said.out == "" and said.err.count("\n") == 1, said.err
        lines.append(f"{words}\n    {said.err.replace(str(tmp_path), 'HERE')}")
    assert "".join(lines) == snapshot
