"""What a user can get wrong: one sentence, an exit code, and nothing left that looks whole."""

from __future__ import annotations

import json
import re
import shutil
from typing import NamedTuple

import pytest

from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.preparation.prepare import PrepareOptions, prepare
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.data import TrainingData
from tests.conftest import PHRASES
from tests.driver import Driver, Ended
from tests.messages import mentions


class Case(NamedTuple):
    """A command line, and what its standard error mentions."""

    binary: str
    arguments: str
    message: str
    code: int = 1
    text: str = ""


def _prepare(source: str, target: str, more: str = "") -> str:
    return f"--source={source} --target={target} --output_dir=new --vocab_size=60 {more}"


_TRAIN = "--data_dir=data --run_dir="
CASES = {
    # Text to prepare.
    "files of different length": Case(
        "prepare", _prepare("six.en", "two.de"),
        mentions("six.en", "6", "two.de", "2"),
    ),
    "different numbers of files": Case(
        "prepare", _prepare("six.en,two.en", "six.de"),
        mentions("2", "source files", "1", "target files"),
    ),
    "an empty file": Case(
        "prepare", _prepare("empty", "two.de"),
        mentions("empty", "sentence"),
    ),
    "no UTF-8": Case(
        "prepare", _prepare("latin1.en", "two.de"),
        mentions("latin1.en", "line 2", "0xe4", "7", "UTF-8"),
    ),
    "a missing file": Case(
        "prepare", _prepare("six.en", "none.de"),
        mentions("none.de", "missing"),
    ),
    "a directory for a file": Case(
        "prepare", _prepare("six.en", "data"), mentions("data", "regular file"),
    ),
    "nothing left": Case(
        "prepare", _prepare("blank", "two.de"),
        mentions("train", "2", "empty"),
    ),
    "a bad validation file": Case(
        "prepare", _prepare("six.en", "six.de", "--valid_source=two.en --valid_target=none.de"),
        mentions("none.de", "missing"),
    ),
    "a prepared directory of other text": Case(
        "prepare", "--source=six.en --target=two_six.de --output_dir=data --vocab_size=60",
        mentions("data", "input"),
    ),
    "an unknown flag": Case(
        "prepare", _prepare("six.en", "six.de", "--vocabsize=9"),
        mentions("vocabsize"), code=2,
    ),
    "a flag missing": Case(
        "prepare", "--source=six.en --target=six.de", mentions("--output_dir", "missing"), code=2
    ),
    "a vocabulary of 1": Case(
        "prepare", "--source=six.en --target=six.de --output_dir=new --vocab_size=1",
        mentions("vocab_size", "1", "5"),
    ),
    "a vocabulary below the characters": Case(
        "prepare", "--source=six.en --target=six.de --output_dir=new --vocab_size=9",
        mentions("vocab_size", "9"),
    ),
    # What to train.
    "no data": Case("train", "--data_dir=none --run_dir=new", mentions("none")),
    "data without its training part": Case(
        "train", "--data_dir=half --run_dir=new", mentions("half/train")
    ),
    "data of another vocabulary": Case(
        "train", "--data_dir=other --run_dir=run",
        mentions("run", "vocabulary", "data"),
    ),
    "data of another corpus": Case(
        "train", "--data_dir=same_vocabulary --run_dir=run",
        mentions("run", "corpus", "data"),
    ),
    "another configuration": Case(
        "train", _TRAIN + "run --set=model.d_ff=64",
        mentions("run", "model.d_ff", "32", "64", "--run_dir"),
    ),
    "another preset": Case("train", _TRAIN + "run --preset=tiny", mentions("run", "--run_dir")),
    "an unknown preset": Case(
        "train", _TRAIN + "new --preset=huge",
        mentions("huge", "preset", "tiny", "small", "base", "big"),
    ),
    "an unknown field": Case(
        "train", _TRAIN + "new --set=training.sed=1",
        mentions("training.sed", "max_steps"),
    ),
    "a setting without a value": Case(
        "train", _TRAIN + "new --set=training.seed", mentions("--set=training.seed", "setting")
    ),
    "a value of another type": Case(
        "train", _TRAIN + "new --max_steps=many",
        mentions("training.max_steps", "many"),
    ),
    "batches below a sentence": Case(
        "train", _TRAIN + "new --preset=tiny --batch_tokens=2",
        mentions("batch_tokens", "2", "longest target sentence"),
    ),
    "a run directory of something else": Case(
        "train", _TRAIN + "data --preset=tiny",
        mentions("data", "exists", "run directory"),
    ),
    "a file for a run directory": Case(
        "train", _TRAIN + "six.en --preset=tiny", mentions("six.en", "exists", "run directory")
    ),
    "a damaged configuration": Case(
        "train", _TRAIN + "damaged --preset=tiny", mentions("damaged/config.json", "JSON")
    ),
    "no replicas": Case(
        "train", _TRAIN + "new --preset=tiny --logical_cpus=0",
        mentions("logical CPUs", "0", "1"),
    ),
    "a damaged vocabulary": Case(
        "train", "--data_dir=damaged_vocabulary --run_dir=new",
        mentions("damaged_vocabulary/tokenizer/joint.model", "8", "SentencePiece"),
    ),
    "a damaged token store": Case(
        "train", "--data_dir=damaged_store --run_dir=new --preset=tiny",
        mentions("damaged_store/train/00000/source_ids.npy", "read"),
    ),
    # What to do with a run.
    "a beam of 0": Case(
        "translate", "--model_dir=run --beam_size=0 --output=new", code=1, text="the dog\n",
        message=mentions("decoding.beam_size", "0", "1"),
    ),
    "more results than the beam": Case(
        "translate", "--model_dir=run --beam_size=2 --n_best=3 --output=new",
        mentions("decoding.n_best", "3", "decoding.beam_size", "2"), text="the dog\n",
    ),
    "several translations of a document": Case(
        "translate", "--model_dir=run --document --n_best=2 --output=new", text="the dog\n",
        message=mentions("run", "2", "decoding.n_best", "1", "document"),
    ),
    "the attention as text": Case(
        "translate", "--model_dir=run --attention --prefix=six.en", text="the dog\n",
        message=mentions("--attention", "text", "--format=jsonl"),
    ),
    "details of a document": Case(
        "translate", "--model_dir=run --document --format=jsonl", text="the dog\n",
        message=mentions("--document", "--format=jsonl", "--prefix"),
    ),
    "a prefix of a document": Case(
        "translate", "--model_dir=run --document --prefix=six.en", text="the dog\n",
        message=mentions("--document", "--format=jsonl", "--prefix"),
    ),
    "details of a compiled search": Case(
        "translate", "--model_dir=run --jit_compile --format=jsonl", text="the dog\n",
        message=mentions("--jit_compile", "--format=jsonl"),
    ),
    "the training's XLA to translate": Case(
        "translate", "--model_dir=run --set=training.jit_compile=true", text="the dog\n",
        message=mentions("training.jit_compile", "training"),
    ),
    "prefixes of other lines": Case(
        "translate", "--model_dir=run --prefix=two.en --output=new", text="the dog\n" * 3,
        message=mentions("3", "lines", "2", "prefixes"),
    ),
    "no prefixes": Case(
        "translate", "--model_dir=run --prefix=none --output=new", text="the dog\n",
        message=mentions("none", "missing"),
    ),
    "an unknown precision": Case(
        "translate", "--model_dir=run --precision=int8", mentions("--precision=int8"),
        code=2,
    ),
    "weights that are not there": Case(
        "translate", "--model_dir=run@bets", text="the dog\n",
        message=mentions("run", "weights", "bets", "last", "best", "ema"),
    ),
    "a model that is not there": Case(
        "translate", "--model_dir=run,none", text="the dog\n",
        message=mentions("none", "bin/train.py", "--run_dir"),
    ),
    "nothing after a comma": Case(
        "translate", "--model_dir=run,", mentions("--model_dir", "empty"),
        text="the dog\n", code=2,
    ),
    "an ensemble of different vocabularies": Case(
        "translate", "--model_dir=run,other_vocabulary", text="the dog\n",
        message=mentions("run", "other_vocabulary", "vocabularies"),
    ),
    "the likeliest of what is not drawn": Case(
        "translate", "--model_dir=run --set=decoding.top_k=5", text="the dog\n",
        message=mentions("decoding.top_k", "5", "decoding.sample=true"),
    ),
    "a drawn search": Case(
        "translate", "--model_dir=run --sample --set=decoding.coverage_penalty=0.2",
        mentions("decoding.coverage_penalty", "0.2", "decoding.sample", "true"),
        text="the dog\n",
    ),
    "drawn and not drawn": Case(
        "translate", "--model_dir=run --sample --set=decoding.sample=false", text="the dog\n",
        message=mentions("decoding.sample", "--sample=true", "--set=decoding.sample=false"),
    ),
    "a field of training to translate": Case(
        "translate", "--model_dir=run --set=model.d_ff=8", text="the dog\n",
        message=mentions("model.d_ff", "training"),
    ),
    "data for a model": Case(
        "translate", "--model_dir=data --output=new",
        mentions("data", "SavedModel", "LiteRT", "bin/train.py", "bin/export.py"),
    ),
    "no text to translate": Case(
        "translate", "--model_dir=run --input=none --output=new", mentions("none", "No such file")
    ),
    "text to translate in Latin-1": Case(
        "translate", "--model_dir=run --input=latin1.en --output=new",
        mentions("latin1.en", "line 2", "0xe4", "1", "UTF-8"),
    ),
    "an output in no directory": Case(
        "translate", "--model_dir=run --output=none/out", mentions("none/out", "No such file"),
        text="the dog\n",
    ),
    "a test set of different length": Case(
        "evaluate", "--model_dir=run --source=six.en --reference=two.de --output=new",
        mentions("six.en", "6", "two.de", "2"),
    ),
    "an empty test set": Case(
        "evaluate", "--model_dir=run --source=empty --reference=empty --output=new",
        mentions("empty", "sentence"),
    ),
    "an unknown tokenizer": Case(
        "evaluate", "--model_dir=run --source=six.en --reference=six.de --tokenize=x --output=new",
        mentions("x", "tokenizer"),
    ),
    "a beam of 0 to export": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --beam_size=0",
        mentions("decoding.beam_size", "0", "1"),
    ),
    "nothing to compare an export on": Case(
        "export", "--run_dir=run --output_dir=new",
        mentions("export", "sentences", "--data_dir"),
    ),
    "an empty file to compare on": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=empty",
        mentions("empty", "sentence"),
    ),
    "a missing run to export": Case(
        "export", "--run_dir=none --output_dir=new --valid_source=six.en",
        mentions("none", "bin/train.py", "--run_dir"),
    ),
    "CTranslate2 in a SavedModel's precision": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --format=ctranslate2 "
        "--precision=bfloat16",
        mentions("bfloat16", "ctranslate2", "saved_model"),
    ),
    "an ensemble for CTranslate2": Case(
        "export", "--run_dir=run,run@last --output_dir=new --valid_source=six.en "
        "--format=ctranslate2", mentions("run,run@last", "CTranslate2"),
    ),
    "an unknown format": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --format=onnx",
        mentions("onnx", "format", "saved_model"),
    ),
    "more checkpoints than there are": Case(
        "average_checkpoints", "--run_dir=run --last=9",
        mentions("run", "3", "checkpoints", "9"),
    ),
    "no checkpoint to average": Case(
        "average_checkpoints", "--run_dir=run --last=0",
        mentions("last 0", "1"),
    ),
    "unknown weights": Case(
        "average_checkpoints", "--run_dir=run --select=best",
        mentions("run", "weights", "best"),
    ),
    "a damaged run": Case(
        "translate", "--model_dir=damaged_data", mentions("damaged_data/data.json"),
        text="the dog\n",
    ),
    "damaged weights": Case(
        "translate", "--model_dir=damaged_weights", text="the dog\n",
        message=mentions("damaged_weights/checkpoints/step-00000300/weights.npz", "read"),
    ),
    "a run without its vocabulary": Case(
        "translate", "--model_dir=no_tokenizer", text="the dog\n",
        message=mentions("no_tokenizer/tokenizer", "vocabulary", "joint.model"),
    ),
    "results of something else": Case(
        "recipe", "--recipe=multi30k_en_de --corpus_dir=. --work_dir=results",
        mentions("results", "experiment.json"),
    ),
    "a baseline without a reference": Case(
        "baseline", "--data_dir=data --work_dir=new --source=six.en",
        mentions("--source", "--reference", "both"),
    ),
    "a baseline without data": Case(
        "baseline", "--data_dir=missing --work_dir=new --source=six.en --reference=six.de",
        mentions("missing/"),
    ),
    "a run of another architecture": Case(
        "export", "--run_dir=recurrent --data_dir=data --output_dir=new",
        mentions("recurrent/config.json", "architecture", "gru"),
    ),
    "an unknown recipe": Case(
        "recipe", "--recipe=none --corpus_dir=. --work_dir=new",
        mentions("recipe", "none", "multi30k_de_en"),
    ),
}  # fmt: skip

LONG = "dog " * 2500  # 10,000 characters
TAKEN = {
    "one empty string": Case(
        "translate", "--model_dir=run", mentions("line 1", "empty"), 3, "\n"
    ),
    "10,000 characters": Case(
        "translate", "--model_dir=run", mentions("40", "decoding.max_source_tokens"), 3,
        f"the dog\n{LONG}\nthe dog\n",
    ),
    "10,000 characters in one word": Case(
        "translate", "--model_dir=run", mentions("40", "decoding.max_source_tokens"), 3,
        "dog" * 3334,
    ),
    "a line of a megabyte": Case(
        "translate", "--model_dir=run", mentions("40", "decoding.max_source_tokens"), 3,
        f"the dog\n{'the dog ' * 131_072}\n",
    ),
    "CRLF, a BOM, other line separators": Case(
        "translate", "--model_dir=run", "", 0, "\ufeffthe dog\r\nthe\u2028old\x85house\r\nx\x0cy",
    ),
    "a line longer than any of training": Case(
        "translate", "--model_dir=reported --set=decoding.max_source_tokens=200",
        mentions("line 2", "translated"), 3, f"the dog\n{' '.join(PHRASES)}\n",
    ),
    "no line": Case("translate", "--model_dir=run", "", 0, ""),
    "an empty line on one side": Case("prepare", _prepare("gap.en", "six.de"), "", 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(
    run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    """Runs all cases in a directory with files, data and runs for them to go wrong on."""
    folder = tmp_path_factory.mktemp("bad_input")
    text = "".join(f"{phrase}\n" for phrase in PHRASES)
    lines = text.splitlines(keepends=True)
    files: dict[str, bytes] = {
        "six.en": text.encode(), "six.de": text.encode(), "two_six.de": text.upper().encode(),
        "two.en": "".join(lines[:2]).encode(), "two.de": "".join(lines[:2]).encode(),
        "gap.en": "".join(["\n", *lines[1:]]).encode(),
        "empty": b"", "blank": b"\n \n", "latin1.en": b"a dog\nb\xe4r\n",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    corpora = parallel_files([folder / "six.en"], [folder / "six.de"])
    shorter = parallel_files([folder / "two.en"], [folder / "two.de"])
    tokenizer = run_directory.path / "tokenizer"
    prepare(corpora, folder / "data", vocab_from=tokenizer)
    prepare(shorter, folder / "same_vocabulary", vocab_from=tokenizer)
    prepare(corpora, folder / "other", PrepareOptions(vocab_size=50))
    shutil.copytree(folder / "data", folder / "half")
    shutil.rmtree(folder / "half" / "train")
    shutil.copytree(run_directory.path, folder / "run")
    fingerprint = TrainingData.open(folder / "data").fingerprint
    (folder / "run" / "data.json").write_text(json.dumps({"fingerprint": fingerprint}))
    shutil.copytree(folder / "run", folder / "damaged")
    (folder / "damaged" / "config.json").write_text('{"model": ')
    for name in ("damaged_data", "damaged_weights", "no_tokenizer"):
        shutil.copytree(folder / "run", folder / name)
    (folder / "damaged_data" / "data.json").write_text("[]")
    shutil.copytree(folder / "run", folder / "recurrent")
    (folder / "recurrent" / "config.json").write_text('{"architecture": "gru", "model": {}}')
    weights = folder / "damaged_weights" / "checkpoints" / "step-00000300" / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:-100])
    shutil.rmtree(folder / "no_tokenizer" / "tokenizer")
    shutil.copytree(folder / "run", folder / "reported")
    shutil.copy(folder / "data" / "report.json", folder / "reported" / "data_report.json")
    shutil.copytree(folder / "run", folder / "other_vocabulary")
    shutil.copytree(
        folder / "other" / "tokenizer", folder / "other_vocabulary" / "tokenizer",
        dirs_exist_ok=True,
    )  # fmt: skip
    for name, place in (
        ("damaged_vocabulary", "tokenizer/joint.model"),
        ("damaged_store", "train/00000/source_ids.npy"),
    ):
        shutil.copytree(folder / "data", folder / name)
        (folder / name / place).write_bytes(b"no model")
    (folder / "results").mkdir()
    (folder / "results" / "results.json").write_text('{"bleu": 3}')

    cases = {**CASES, **TAKEN}
    with Driver() as driver:  # its own, which has nothing loaded yet
        answers = driver.run_all(folder, [(c.binary, c.arguments, c.text) for c in cases.values()])
    return dict(zip(cases, answers, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(results: dict[str, Ended], name: str) -> None:
    result, case = results[name], CASES[name]
    assert "Traceback" not in result.err
    sentence = result.err.splitlines()[-1] if result.err else ""
    assert sentence.startswith("error: ") and re.search(case.message, sentence)
    assert (result.code, result.out, result.left) == (case.code, "", [])
    assert result.err.count("error: ") == 1


@pytest.mark.parametrize("name", [name for name in TAKEN if TAKEN[name].binary == "translate"])
def test_no_line_to_translate_is_dropped(results: dict[str, Ended], name: str) -> None:
    result, case = results[name], TAKEN[name]
    assert result.code == case.code, result.err
    lines = case.text.removesuffix("\n").split("\n") if case.text else []
    translations = result.out.split("\n")
    assert len(translations) - 1 == len(lines) and translations[-1] == ""
    assert re.search(case.message, result.err) and result.err.count("\n") == (case.code == 3)
    if lines and lines[0] == "the dog":
        assert translations[0] == results["CRLF, a BOM, other line separators"].out.split("\n")[0]


def test_an_empty_line_on_one_side_is_a_counted_drop(results: dict[str, Ended]) -> None:
    result = results["an empty line on one side"]
    assert result.code == 0, result.err
    assert "1 empty" in result.out
    assert "new/report.json" in result.left
