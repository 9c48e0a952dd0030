"""The commands of the parser, from a treebank to scores, one after the other."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  the export needs its ops

from keras_transformer.extensions.paper.parsing.trees import (
    parse_trees,
    read_trees,
)
from keras_transformer.runs.run_directory import RunDirectory
from tests.driver import CommandResult, Driver
from tests.extensions.paper.parsing.sentences import TREEBANK
from tests.messages import mentions, tells

TEXT = "The mice weren't fed (again).\nResults\n\nThey eat seeds.\n"
LEAVES = [
    "The mice were n't fed -LRB- again -RRB- .".split(), ["Results"], None,
    "They eat seeds .".split(),
]  # fmt: skip
SMALL = (
    "--set=model.d_model=16 --set=model.d_ff=32 --set=model.num_encoder_layers=1 "
    "--set=model.num_decoder_layers=1 --batch_tokens=64 --jit_compile=false "
    "--set=decoding.beam_size=3 --set=decoding.max_extra_tokens=10 --mixed_precision=float32"
)
# Binary and flags, run one after the other.
STEPS = {
    "prepare": "prepare_trees --trees=*.tree --ids=train.txt --valid_trees=b.tree "
    "--output_dir=data --vocab_size=60",
    "train": f"train --data_dir=data --run_dir=run --preset=parser_tiny --max_steps=2 {SMALL}",
    "parse": "parse --model_dir=run",
    "score": "score_trees --model_dir=run --gold=*.tree --output=predicted.txt",
    "score a file": "score_trees --hypothesis=predicted.txt --gold=a.tree,b.tree,c.tree",
    "score gold": "score_trees --hypothesis=b.tree --gold=b.tree",
    "other words": "score_trees --hypothesis=b.tree --gold=c.tree",
    "a translator": "parse --model_dir=translator",
    "a broken tree": "prepare_trees --trees=broken --output_dir=other",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_directory: RunDirectory) -> Path:
    path = tmp_path_factory.mktemp("parsing")
    for name, part in (("a", TREEBANK[:4]), ("b", TREEBANK[4:5]), ("c", TREEBANK[5:])):
        (path / f"{name}.tree").write_text("".join(f"{tree}\n" for tree in part))
    (path / "train.txt").write_text("c\na\n")
    (path / "broken").write_text(f"{TREEBANK[0]}\n(S (NN a)\n{TREEBANK[1]}\n")
    shutil.copytree(run_directory.path, path / "translator")
    return path


@pytest.fixture(scope="module")
def answers(driver: Driver, folder: Path, one_replica: None) -> dict[str, CommandResult]:
    commands = [(*step.split(" ", 1), TEXT) for step in STEPS.values()]
    return dict(zip(STEPS, driver.run_all(folder, commands), strict=True))


def test_a_treebank_is_prepared_and_trained_on(answers: dict[str, CommandResult]) -> None:
    assert tells(answers["prepare"].out, "train", "5 pairs")
    assert "data/report.html" in answers["prepare"].left
    for name in ("prepare", "train"):
        assert answers[name].code == 0, answers[name].err


def check_trees(answer: CommandResult, text: str) -> None:
    assert (answer.code, answer.err) == (3, "Warning: Line 3 is empty, and so is its tree.\n")
    for line, leaves in zip(text.split("\n")[:-1], LEAVES, strict=True):
        words = [list(tree.words) for tree in parse_trees([line], "lines")]
        assert words == ([] if leaves is None else [leaves])


def test_lines_become_trees_over_their_words(answers: dict[str, CommandResult]) -> None:
    check_trees(answers["parse"], answers["parse"].out)


@pytest.fixture(scope="module")
def signatures(driver: Driver, folder: Path, answers: dict[str, CommandResult]) -> Any:
    flags = "--format=parser --run_dir=run --data_dir=data --output_dir=export --n_best=2"
    ended = driver.run(folder, "export", flags.split(), "")
    assert ended.code == 0, ended.err
    parsed = driver.run(folder, "parse", ["--model_dir=export"], TEXT)
    check_trees(parsed, parsed.out)
    assert parsed.out == answers["parse"].out
    model = tf.saved_model.load(str(folder / "export" / "1"))
    yield model.signatures  # they do not keep the model alive


@pytest.mark.long  # exports a model; parser_test calls the same functions before an export
@pytest.mark.parametrize(("name", "key"), [("parse", "text"), ("parse_tokens", "tokens")])
def test_the_signatures_of_an_export(signatures: Any, name: str, key: str) -> None:
    outputs = signatures[name].structured_outputs
    shapes = {field: spec.shape.as_list() for field, spec in outputs.items()}
    assert shapes == {"trees": [None, 2], "scores": [None, 2], "truncated": [None]}
    # No request fails, and rows do not depend on each other.
    hostile = [b"\xff(", b"", b"\x00\n", "💥 ".encode() * 1200, b"(" * 99, b"seeds"]
    answer = signatures[name](**{key: tf.constant(hostile)})
    lines = [row[0].decode() for row in answer["trees"].numpy()]
    assert [bool(line) for line in lines] == [True, False, False, True, True, True]
    assert answer["truncated"].numpy().tolist() == [False, False, False, True, False, False]
    found = list(parse_trees(lines, "trees"))
    words = [1, 1200, 1, 1] if name == "parse_tokens" else [2, 1200, 99, 1]
    assert [len(tree.words) for tree in found] == words
    alone = signatures[name](**{key: tf.constant(["seeds"])})["trees"].numpy()
    assert alone[0].tolist() == answer["trees"].numpy()[-1].tolist()
    assert signatures[name](**{key: tf.constant([], tf.string)})["trees"].shape == (0, 2)


def test_scores_are_printed_as_json(folder: Path, answers: dict[str, CommandResult]) -> None:
    assert [tree.words for tree in read_trees(folder / "predicted.txt")] == [
        tree.words for tree in parse_trees(TREEBANK, "text")
    ]
    scores = json.loads(answers["score"].out.splitlines()[-1])
    assert scores.pop("seconds") > 0
    assert json.loads(answers["score a file"].out.splitlines()[-1]) == scores
    assert scores["all"]["sentences"] == len(TREEBANK)
    gold = json.loads(answers["score gold"].out.splitlines()[-1])
    assert gold["all"]["f1"] == gold["up_to_40_words"]["complete_match"] == 100
    assert gold["rules"] == "EVALB, COLLINS.prm; punctuation by the gold tags"


def test_sentences_with_other_words_are_reported(answers: dict[str, CommandResult]) -> None:
    answer = answers["other words"]
    assert (answer.code, json.loads(answer.out.splitlines()[-1])["all"]["errors"]) == (3, 1)
    assert tells(answer.err, "sentence 1", "'The'", "'They'", "gold")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a translator", mentions("error:", "translator", "parser", "vocabulary")),
        ("a broken tree", mentions("error:", "broken", "line 3", "column 1", "bracket", "line 2")),
    ],
)  # fmt: skip
def test_errors_are_one_line(answers: dict[str, CommandResult], name: str, message: str) -> None:
    answer = answers[name]
    assert (answer.code, answer.out, answer.left) == (1, "", [])
    assert re.search(message, answer.err) and answer.err.count("\n") == 1
