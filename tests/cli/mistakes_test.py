"""Invalid input of any command is an error of one line. A flag without effect is one, too."""

from pathlib import Path

import pytest

from tests.driver import Driver
from tests.evaluation.test_sets_test import sacrebleu_folder
from tests.messages import tells

TEXT = "--source=a.en --target=a.de --output_dir=new"
TREES = "prepare_trees --trees=a.tree --output_dir=new"
WMT = "evaluate --model_dir=none --test_set=wmt14"
FILES = "--model_dir=run --source=six.en --reference=six.de"
SCORE = "score --model_dir=run"
# Command line, standard input, and the facts of the error.
USAGE = [  # exit code 2
    ("trian", "", "trian", "train", "keras-transformer --help"),
    ("translate-corpus", "", "translate_corpus", "keras-transformer --help"),
    ("train --dat=3", "", "flag 'dat'", "Did you mean: data_dir"),
    ("train --run-dir=3", "", "flag 'run-dir'", "Did you mean: run_dir"),
    ("train --data_dir=x", "", "--run_dir must have a value", "--help"),
    ("train --data_dir= --run_dir=x", "", "--data_dir", "empty", "--help"),
    (f"{SCORE} stray", "", "stray", "--name=value"),
    (f"{SCORE} --format=xml", "", "--format=xml"),
    ("translate --model_dir=x --nodocument=1", "", "--nodocument=1"),
    ("evaluate", "", "model_dir", "hypothesis", "Exactly one"),
    (f"evaluate {FILES} --hypothesis=six.de", "", "model_dir", "hypothesis", "Exactly one"),
    ("evaluate --model_dir=run --test_set=wmt14 --source=six.en", "", "test_set", "At most one"),
]
INPUT = [  # exit code 1
    ("translate --model_dir=x --input=none", "", "none", "No such file"),
    ("train --data_dir=x --run_dir=y --init_from=s3://a/b", "", "--init_from", "this machine"),
    (f"prepare {TEXT} --vocab_from=data --vocab_size=80", "", "--vocab_size", "--vocab_from"),
    (f"prepare {TEXT} --vocab_from=data --nobyte_fallback", "", "--byte_fallback", "--vocab_from"),
    (f"prepare {TEXT} --valid_tsv=a.tsv --valid_pairs=2", "", "--valid_pairs", "validation"),
    ("prepare --tsv=a.tsv --tsv_columns=1 --output_dir=new", "", "--tsv_columns", "1,2"),
    ("prepare --tfds=x:sets --output_dir=new", "", "split", "x:sets@train"),
    (f"{TREES} --valid_trees=b.tree --valid_pairs=2", "", "--valid_pairs"),
    (f"{TREES} --valid_ids=ids", "", "--valid_ids", "--valid_trees"),
    ("evaluate --model_dir=run --reference=six.de", "", "--source", "missing", "--model_dir"),
    (f"evaluate {FILES} --baseline=two.de", "", "two.de", "2", "reference", "6"),
    (WMT, "", "wmt14", "language pair", "''"),
    (f"{WMT}/full --language_pair=en-fr --paper_bleu", "", "wmt14/full"),
    ("evaluate --hypothesis=latin1.de --reference=six.de", "", "latin1.de", "line 2", "0xe4"),
    (f"{SCORE} --source=six.en --target=two.de", "", "six.en", "6", "two.de", "2"),
    (f"{SCORE} --source=two.de --target=latin1.de", "", "latin1.de", "line 2", "0xe4", "UTF-8"),
    (SCORE, "a\tb\na b\n", "standard input", "line 2", "tabs"),
    (SCORE, "a\tb\tc\n", "standard input", "line 1", "2", "tabs"),
    (SCORE, "", "standard input", "empty", "tab"),
    (f"{SCORE} --source=six.en", "", "both", "--source", "--target"),
    ("score --model_dir=export", "a\tb\n", "export", "keras-transformer train"),
    (f"{SCORE} --set=model.d_ff=8", "a\tb\n", "model.d_ff", "training"),
    ("translate --model_dir=run --interactive --input=six.en", "", "--interactive", "--input"),
    ("translate --model_dir=run --interactive --document", "", "--interactive", "--document"),
    ("translate --model_dir=run --interactive --prefix=six.de", "", "--interactive", "--prefix"),
    ("translate --model_dir=run --attention", "", "--attention", "--format=jsonl"),
    ("translate --model_dir=run --document --format=jsonl", "", "--document", "--format"),
    ("translate --model_dir=run --source_language=de --nodocument", "", "--nodocument"),
    ("prepare --source=a --target=b --tsv_quoted --output_dir=new", "", "--tsv_quoted", "--tsv"),
    ("translate --model_dir=tagged --source_tag=<2it>", "a dog\n", "<2it>", "<2de>, <2fr>"),
    ("translate --model_dir=run --source_tag=<2it>", "a dog\n", "<2it>", "no tags"),
]


@pytest.mark.parametrize(
    ("expected", "line", "text", "facts"),
    [(2, line, text, facts) for line, text, *facts in USAGE]
    + [(1, line, text, facts) for line, text, *facts in INPUT],
)
def test_invalid_input_gives_a_one_line_error_and_no_output(
    expected: int, line: str, text: str, facts: list[str], driver: Driver, folder: Path
) -> None:
    name, *arguments = line.split()
    with sacrebleu_folder(folder / "sacrebleu"):
        code, out, err, left = driver.run(folder, name, arguments, text)
    assert (code, out, left) == (expected, "", [])
    assert err.startswith("error: ") and err.count("\n") == 1 and tells(err, *facts)
