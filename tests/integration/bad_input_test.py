"""What a user can get wrong: one sentence, an exit code, and nothing left that looks whole."""

from __future__ import annotations

import json
import shutil
from typing import NamedTuple

import pytest

from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.preparation.prepare import PrepareOptions, prepare
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from tests.conftest import PHRASES
from tests.driver import Driver, Ended


class Case(NamedTuple):
    """A command line, and how its standard error ends."""

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
        "error: six.en has 6 lines and two.de has 2; expected the same number",
    ),
    "different numbers of files": Case(
        "prepare", _prepare("six.en,two.en", "six.de"),
        "error: there are 2 source files and 1 target files; expected the same number",
    ),
    "an empty file": Case(
        "prepare", _prepare("empty", "two.de"),
        "error: empty is empty; expected one sentence a line",
    ),
    "no UTF-8": Case(
        "prepare", _prepare("latin1.en", "two.de"),
        "error: latin1.en, line 2: byte 0xe4 at byte offset 7 is not UTF-8 (",
    ),
    "a missing file": Case(
        "prepare", _prepare("six.en", "none.de"),
        "error: none.de is missing; expected a text file, one sentence a line",
    ),
    "a directory for a file": Case(
        "prepare", _prepare("six.en", "data"), "error: data is no regular file; expected a text",
    ),
    "nothing left": Case(
        "prepare", _prepare("blank", "two.de"),
        "error: no pair is left for train of 2 read (dropped: 2 empty)",
    ),
    "a bad validation file": Case(
        "prepare", _prepare("six.en", "six.de", "--valid_source=two.en --valid_target=none.de"),
        "error: none.de is missing; expected a text file",
    ),
    "a prepared directory of other text": Case(
        "prepare", "--source=six.en --target=two_six.de --output_dir=data --vocab_size=60",
        "error: data holds data prepared from other input",
    ),
    "an unknown flag": Case(
        "prepare", _prepare("six.en", "six.de", "--vocabsize=9"),
        "error: Unknown command line flag 'vocabsize'", code=2,
    ),
    "a flag missing": Case(
        "prepare", "--source=six.en --target=six.de", "error: --output_dir is missing", code=2
    ),
    "a vocabulary of 1": Case(
        "prepare", "--source=six.en --target=six.de --output_dir=new --vocab_size=1",
        "error: vocab_size is 1; expected at least 5",
    ),
    "a vocabulary below the characters": Case(
        "prepare", "--source=six.en --target=six.de --output_dir=new --vocab_size=9",
        "error: vocab_size is 9; expected at least ",
    ),
    # What to train.
    "no data": Case("train", "--data_dir=none --run_dir=new", "error: none"),
    "data without its training part": Case(
        "train", "--data_dir=half --run_dir=new", "error: half/train"
    ),
    "data of another vocabulary": Case(
        "train", "--data_dir=other --run_dir=run",
        "error: run was trained with another vocabulary than the data directory's; expected the "
        "data directory that the run began with",
    ),
    "data of another corpus": Case(
        "train", "--data_dir=same_vocabulary --run_dir=run",
        "error: run was trained on another corpus than the data directory's; expected the data",
    ),
    "another configuration": Case(
        "train", _TRAIN + "run --set=model.d_ff=64",
        "error: run holds a run with model.d_ff 32, not 64; expected the configuration it began "
        "with, or another --run_dir",
    ),
    "another preset": Case("train", _TRAIN + "run --preset=tiny", "error: run holds a run with "),
    "an unknown preset": Case(
        "train", _TRAIN + "new --preset=huge",
        "error: 'huge' is no preset; expected one of tiny, small, base, big",
    ),
    "an unknown field": Case(
        "train", _TRAIN + "new --set=training.sed=1",
        "error: 'training.sed' is no setting; the fields of training are max_steps, ",
    ),
    "a setting without a value": Case(
        "train", _TRAIN + "new --set=training.seed", "error: --set=training.seed is no setting; exp"
    ),
    "a value of another type": Case(
        "train", _TRAIN + "new --max_steps=many",
        "error: training.max_steps is 'many'; expected a whole number",
    ),
    "batches below a sentence": Case(
        "train", _TRAIN + "new --preset=tiny --batch_tokens=2",
        "error: batch_tokens is 2, but the longest target sentence",
    ),
    "a run directory of something else": Case(
        "train", _TRAIN + "data --preset=tiny",
        "error: data exists and is no run directory; expected a new or empty one",
    ),
    "a file for a run directory": Case(
        "train", _TRAIN + "six.en --preset=tiny", "error: six.en exists and is no run directory"
    ),
    "a damaged configuration": Case(
        "train", _TRAIN + "damaged --preset=tiny", "error: damaged/config.json is no JSON: "
    ),
    "no replicas": Case(
        "train", _TRAIN + "new --preset=tiny --logical_cpus=0",
        "error: the number of logical CPUs is 0; expected at least 1",
    ),
    "a damaged vocabulary": Case(
        "train", "--data_dir=damaged_vocabulary --run_dir=new",
        "error: damaged_vocabulary/tokenizer/joint.model: 8 bytes that are no SentencePiece model",
    ),
    "a damaged token store": Case(
        "train", "--data_dir=damaged_store --run_dir=new --preset=tiny",
        "error: damaged_store/train/00000/source_ids.npy cannot be read",
    ),
    # What to do with a run.
    "a beam of 0": Case(
        "translate", "--model_dir=run --beam_size=0 --output=new", code=1, text="the dog\n",
        message="error: decoding.beam_size is 0; expected at least 1",
    ),
    "more results than the beam": Case(
        "translate", "--model_dir=run --beam_size=2 --n_best=3 --output=new",
        "error: decoding.n_best is 3; expected at most decoding.beam_size (2)", text="the dog\n",
    ),
    "several translations of a document": Case(
        "translate", "--model_dir=run --document --n_best=2 --output=new", text="the dog\n",
        message="error: run gives 2 translations of each sentence (decoding.n_best); expected 1 to "
        "translate a document",
    ),
    "the attention as text": Case(
        "translate", "--model_dir=run --attention --prefix=six.en", text="the dog\n",
        message="error: --attention does not go into text; expected --format=jsonl",
    ),
    "details of a document": Case(
        "translate", "--model_dir=run --document --format=jsonl", text="the dog\n",
        message="error: --document is for plain translation; expected no --format=jsonl and no --p",
    ),
    "a prefix of a document": Case(
        "translate", "--model_dir=run --document --prefix=six.en", text="the dog\n",
        message="error: --document is for plain translation; expected no --format=jsonl and no --p",
    ),
    "details of a compiled search": Case(
        "translate", "--model_dir=run --jit_compile --format=jsonl", text="the dog\n",
        message="error: --jit_compile is for plain translation; expected no --format=jsonl and no ",
    ),
    "the training's XLA to translate": Case(
        "translate", "--model_dir=run --set=training.jit_compile=true", text="the dog\n",
        message="error: training.jit_compile cannot be changed after training; expected settings o",
    ),
    "prefixes of other lines": Case(
        "translate", "--model_dir=run --prefix=two.en --output=new", text="the dog\n" * 3,
        message="error: there are 3 lines and 2 prefixes; expected a prefix for each line",
    ),
    "no prefixes": Case(
        "translate", "--model_dir=run --prefix=none --output=new", text="the dog\n",
        message="error: none is missing; expected a text file, one sentence a line",
    ),
    "an unknown precision": Case(
        "translate", "--model_dir=run --precision=int8", "error: flag --precision=int8: value shou",
        code=2,
    ),
    "weights that are not there": Case(
        "translate", "--model_dir=run@bets", text="the dog\n",
        message="error: run has no weights named 'bets'; expected last, best, ema, or the name of",
    ),
    "a model that is not there": Case(
        "translate", "--model_dir=run,none", text="the dog\n",
        message="error: none is not there; expected what bin/train.py --run_dir writes",
    ),
    "nothing after a comma": Case(
        "translate", "--model_dir=run,", "error: --model_dir has an empty value; expected one",
        text="the dog\n", code=2,
    ),
    "an ensemble of different vocabularies": Case(
        "translate", "--model_dir=run,other_vocabulary", text="the dog\n",
        message="error: run and other_vocabulary have different vocabularies; expected one of all",
    ),
    "the likeliest of what is not drawn": Case(
        "translate", "--model_dir=run --set=decoding.top_k=5", text="the dog\n",
        message="error: decoding.top_k is 5, and nothing is drawn; expected decoding.sample=true",
    ),
    "a drawn search": Case(
        "translate", "--model_dir=run --sample --set=decoding.coverage_penalty=0.2",
        "error: decoding.coverage_penalty is 0.2, and decoding.sample is true; expected one of",
        text="the dog\n",
    ),
    "drawn and not drawn": Case(
        "translate", "--model_dir=run --sample --set=decoding.sample=false", text="the dog\n",
        message="error: decoding.sample is given twice, by --sample=true and by --set=decoding.sam",
    ),
    "a field of training to translate": Case(
        "translate", "--model_dir=run --set=model.d_ff=8", text="the dog\n",
        message="error: model.d_ff cannot be changed after training; expected settings of decoding",
    ),
    "data for a model": Case(
        "translate", "--model_dir=data --output=new",
        "error: data is neither a run directory nor a SavedModel or LiteRT model; expected what "
        "bin/train.py or bin/export.py writes",
    ),
    "no text to translate": Case(
        "translate", "--model_dir=run --input=none --output=new", "error: none cannot be read (No"
    ),
    "text to translate in Latin-1": Case(
        "translate", "--model_dir=run --input=latin1.en --output=new",
        "error: latin1.en, line 2: byte 0xe4 at byte 1 of the line is not UTF-8 (",
    ),
    "an output in no directory": Case(
        "translate", "--model_dir=run --output=none/out", "error: none/out cannot be written (No",
        text="the dog\n",
    ),
    "a test set of different length": Case(
        "evaluate", "--model_dir=run --source=six.en --reference=two.de --output=new",
        "error: six.en has 6 lines and two.de 2; expected the same number",
    ),
    "an empty test set": Case(
        "evaluate", "--model_dir=run --source=empty --reference=empty --output=new",
        "error: empty is empty; expected one sentence a line",
    ),
    "an unknown tokenizer": Case(
        "evaluate", "--model_dir=run --source=six.en --reference=six.de --tokenize=x --output=new",
        "error: 'x' is no tokenizer",
    ),
    "a beam of 0 to export": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --beam_size=0",
        "error: decoding.beam_size is 0; expected at least 1",
    ),
    "nothing to compare an export on": Case(
        "export", "--run_dir=run --output_dir=new",
        "error: the export is compared with the run on real sentences; expected either --data_dir",
    ),
    "an empty file to compare on": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=empty", "error: empty is empty; e"
    ),
    "a missing run to export": Case(
        "export", "--run_dir=none --output_dir=new --valid_source=six.en",
        "error: none is not there; expected what bin/train.py --run_dir writes",
    ),
    "CTranslate2 in a SavedModel's precision": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --format=ctranslate2 "
        "--precision=bfloat16",
        "error: precision is bfloat16, but the format is ctranslate2; expected the format saved_m",
    ),
    "an ensemble for CTranslate2": Case(
        "export", "--run_dir=run,run@last --output_dir=new --valid_source=six.en "
        "--format=ctranslate2", "error: run,run@last are several models, and a CTranslate2 model i",
    ),
    "an unknown format": Case(
        "export", "--run_dir=run --output_dir=new --valid_source=six.en --format=onnx",
        "error: 'onnx' is no format; expected one of saved_model",
    ),
    "more checkpoints than there are": Case(
        "average_checkpoints", "--run_dir=run --last=9",
        "error: run has 3 checkpoints; expected the 9 to average",
    ),
    "no checkpoint to average": Case(
        "average_checkpoints", "--run_dir=run --last=0",
        "error: the last 0 checkpoints cannot be averaged; expected at least 1",
    ),
    "unknown weights": Case(
        "average_checkpoints", "--run_dir=run --select=best",
        "error: run has no weights named 'best'",
    ),
    "a damaged run": Case(
        "translate", "--model_dir=damaged_data", "error: damaged_data/data.json", text="the dog\n"
    ),
    "damaged weights": Case(
        "translate", "--model_dir=damaged_weights", text="the dog\n",
        message="error: damaged_weights/checkpoints/step-00000300/weights.npz cannot be read as ",
    ),
    "a run without its vocabulary": Case(
        "translate", "--model_dir=no_tokenizer", text="the dog\n",
        message="error: no_tokenizer/tokenizer holds no vocabulary; expected joint.model, or ",
    ),
    "results of something else": Case(
        "recipe", "--recipe=multi30k_en_de --corpus_dir=. --work_dir=results",
        "error: results/results.json is of something else, not of the recipe multi30k_en_de; ",
    ),
    "a baseline without a reference": Case(
        "baseline", "--data_dir=data --work_dir=new --source=six.en",
        "error: --source and --reference: one given; expected both, or neither",
    ),
    "a baseline without data": Case(
        "baseline", "--data_dir=missing --work_dir=new --source=six.en --reference=six.de",
        "error: missing/",
    ),
    "a run of another architecture": Case(
        "export", "--run_dir=recurrent --data_dir=data --output_dir=new",
        "error: recurrent/config.json has the architecture 'gru', which is not registered. ",
    ),
    "an unknown recipe": Case(
        "recipe", "--recipe=none --corpus_dir=. --work_dir=new",
        "error: there is no recipe 'none'; expected one of multi30k_de_en, ",
    ),
}  # fmt: skip

LONG = "dog " * 2500  # 10,000 characters
TAKEN = {
    "one empty string": Case(
        "translate", "--model_dir=run", "line 1 is empty, and so is its translation\n", 3, "\n"
    ),
    "10,000 characters": Case(
        "translate", "--model_dir=run", "tokens; the first 40 were translated "
        "(decoding.max_source_tokens)\n", 3, f"the dog\n{LONG}\nthe dog\n",
    ),
    "10,000 characters in one word": Case(
        "translate", "--model_dir=run", "tokens; the first 40 were translated "
        "(decoding.max_source_tokens)\n", 3, "dog" * 3334,
    ),
    "a line of a megabyte": Case(
        "translate", "--model_dir=run", "tokens; the first 40 were translated "
        "(decoding.max_source_tokens)\n", 3, f"the dog\n{'the dog ' * 131_072}\n",
    ),
    "CRLF, a BOM, other line separators": Case(
        "translate", "--model_dir=run", "", 0, "\ufeffthe dog\r\nthe\u2028old\x85house\r\nx\x0cy",
    ),
    "a line longer than any of training": Case(
        "translate", "--model_dir=reported --set=decoding.max_source_tokens=200",
        "it was translated as it is\n", 3, f"the dog\n{' '.join(PHRASES)}\n",
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
    fingerprint = training_run._Data.open(folder / "data").fingerprint
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
    assert sentence.startswith(case.message)
    assert (result.code, result.out, result.left) == (case.code, "", [])
    assert result.err.count("error: ") == 1


@pytest.mark.parametrize("name", [name for name in TAKEN if TAKEN[name].binary == "translate"])
def test_no_line_to_translate_is_dropped(results: dict[str, Ended], name: str) -> None:
    result, case = results[name], TAKEN[name]
    assert result.code == case.code, result.err
    lines = case.text.removesuffix("\n").split("\n") if case.text else []
    translations = result.out.split("\n")
    assert len(translations) - 1 == len(lines) and translations[-1] == ""
    assert result.err.endswith(case.message) and result.err.count("\n") == (case.code == 3)
    if lines and lines[0] == "the dog":
        assert translations[0] == results["CRLF, a BOM, other line separators"].out.split("\n")[0]


def test_an_empty_line_on_one_side_is_a_counted_drop(results: dict[str, Ended]) -> None:
    result = results["an empty line on one side"]
    assert result.code == 0, result.err
    assert "1 empty" in result.out
    assert "new/report.json" in result.left
