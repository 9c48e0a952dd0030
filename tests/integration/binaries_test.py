"""The binaries that use a run, one after the other in a single process."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.driver import Driver
from tests.extensions.paper.recipes.recipes import write_corpus, write_recipe
from tests.messages import tells

ENSEMBLE = "run@step-00000100,run@step-00000300"
AVERAGE = "average-last-3-step-300"
TEXT = "".join(f"{phrase}\n" for phrase in PHRASES)
PREFIXES = ("", "ein", "das", "", "zwei", "mit")
SAMPLED = "translate --model_dir=run --sample --n_best=3 --set=decoding.temperature=2"
MARIAN = ROOT / "tests" / "fixtures" / "marian" / "post_norm.npz"
COMMANDS = {
    "plain": "translate --model_dir=run",
    "compiled": "translate --model_dir=run --compile_search",
    "bfloat16": "translate --model_dir=run --precision=bfloat16",
    "ensemble": f"translate --model_dir={ENSEMBLE}",
    "prefixes": "translate --model_dir=run --prefix=prefixes",
    "details": "translate --model_dir=run --format=jsonl --n_best=2 --prefix=prefixes",
    "attention": "translate --model_dir=run --format=jsonl --attention --output=attention.jsonl",
    "sampled": SAMPLED,
    "sampled again": SAMPLED,
    "other samples": f"{SAMPLED} --set=decoding.seed=1",
    "evaluation": "evaluate --model_dir=run --precision=bfloat16 --source=text --reference=text "
    "--output=evaluated",
    "selection": "average --run_dir=run --select=step-00000200",
    "selected": "translate --model_dir=run",
    "average": "average --run_dir=run --last=3",
    "export": "export --run_dir=run@step-00000100,run --weights=bfloat16 --n_best=2 "
    "--output_dir=export --valid_source=text --valid_target=text",
    "CTranslate2": "export --run_dir=run --format=ctranslate2 --output_dir=ctranslate2 "
    "--valid_source=text",
    "exported": "translate --model_dir=export --format=jsonl",
    "conversion": f"convert --from=marian --input={MARIAN} --output=converted",
    "exported, in files": "translate --model_dir=export --input=text --output=out.de",
}


class Results(NamedTuple):
    """The folder of the commands, and their standard output by name."""

    folder: Path
    out: dict[str, str]

    def objects(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out[name].removesuffix("\n").split("\n")]


@pytest.fixture(scope="module")
def results(
    driver: Driver, run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    folder = tmp_path_factory.mktemp("binaries")
    shutil.copytree(run_directory.path, folder / "run")
    (folder / "text").write_text(TEXT)
    (folder / "prefixes").write_text("".join(f"{prefix}\n" for prefix in PREFIXES))
    commands = [(*command.split(" ", 1), TEXT) for command in COMMANDS.values()]
    out = {}
    for name, ended in zip(COMMANDS, driver.run_all(folder, commands), strict=True):
        assert (name, ended.code, ended.err) == (name, 0, "")
        out[name] = ended.out
    return Results(folder, out)


def test_weights_and_precision_follow_the_flags(results: Results) -> None:
    run = results.folder / "run"
    members = ",".join(f"{run}@step-00000{step}00" for step in (1, 3))
    for name, model in (
        ("plain", loading.load_model(f"{run}@last")),
        ("bfloat16", loading.load_model(f"{run}@last", precision="bfloat16")),
        ("ensemble", loading.load_model(members)),
        ("selected", loading.load_model(f"{run}@step-00000200")),
    ):
        found = translate.translate_lines(model, PHRASES)
        assert results.out[name] == translate.format_translations(model, found)
    names = ("plain", "bfloat16", "ensemble", "selected")
    assert len({results.out[name] for name in names}) == 4
    assert results.out["compiled"] == results.out["plain"]
    assert results.out["selection"] == "run now uses step-00000200\n"


def test_prefixes_and_details(results: Results) -> None:
    texts = results.out["prefixes"].split("\n")[:-1]
    for prefix, text, free in zip(PREFIXES, texts, results.out["plain"].split("\n"), strict=False):
        assert text.startswith(prefix) and (prefix or text == free)
    details = results.objects("details")
    assert [result["translations"][0]["text"] for result in details] == texts
    assert [len(result["translations"]) for result in details] == [2] * len(PHRASES)
    assert "attention" not in details[0]["translations"][0]


def test_a_model_is_converted(results: Results) -> None:
    assert tells(results.out["conversion"], "converted", "1 + 2 layers", "d_model 16")
    assert RunDirectory(results.folder / "converted").config.model.d_ff == 24


def test_attention_in_a_file(results: Results) -> None:
    assert results.out["attention"] == ""
    texts = []
    for line in (results.folder / "attention.jsonl").read_text().split("\n")[:-1]:
        result = json.loads(line)
        (best,) = result["translations"]
        assert np.shape(best["attention"]) == (len(best["tokens"]), len(result["source_tokens"]))
        texts.append(best["text"])
    assert texts == results.out["plain"].split("\n")[:-1]


def test_samples_depend_on_the_seed(results: Results) -> None:
    assert results.out["sampled"] == results.out["sampled again"] != results.out["other samples"]
    indices = [line.split(" ||| ")[0] for line in results.out["sampled"].splitlines()]
    assert indices == [str(i // 3) for i in range(18)]


def test_evaluation_in_bfloat16(results: Results) -> None:
    assert (results.folder / "evaluated").read_text() == results.out["bfloat16"]
    assert json.loads(results.out["evaluation"].splitlines()[-1])["sentences"] == len(PHRASES)


def test_an_ensemble_with_an_average_is_exported(results: Results) -> None:
    assert tells(results.out["average"], "run", AVERAGE, "3")
    assert tells(results.out["export"], "exported", "export/1", "6")
    assert tells(results.out["CTranslate2"], "exported", "ctranslate2/1")
    run = results.folder / "run"
    members = f"{run}@step-00000100,{run}@{AVERAGE}"
    model = loading.load_model(members, {"decoding.n_best": 2}, precision="bfloat16")
    expected = translate.translate_verbose(model, PHRASES)
    for theirs, ours in zip(results.objects("exported"), expected, strict=True):
        assert theirs["source_tokens"] == ours["source_tokens"]
        for one, same in zip(theirs["translations"], ours["translations"], strict=True):
            assert one["ids"] == same["ids"]
    rows = [line.split(" ||| ") for line in (results.folder / "out.de").read_text().splitlines()]
    assert [int(index) for index, _, _ in rows] == [i // 2 for i in range(12)]
    assert float(rows[0][2]) >= float(rows[1][2])


def test_a_document_keeps_its_lines(results: Results, driver: Driver) -> None:
    first, second = (phrase.capitalize() + "." for phrase in PHRASES[:2])
    text = f"\ufeff{first}\r\n\r\n  {first} {second}\t{first}\n{'ball ' * 300}\n \n{second}"

    def run(*flags: str, text: str) -> Any:
        return driver.run(results.folder, "translate", ["--model_dir=run@last", *flags], text)

    first, second = run(text=f"{first}\n{second}\n").out.splitlines()
    code, out, err, _ = run("--document", text=text)
    head, end = f"{first}\r\n\r\n  {first} {second}\t{first}\n", f"\n \n{second}"
    assert out.startswith(head) and out.endswith(end)
    assert "\n" not in out.removeprefix(head).removesuffix(end)
    assert code == 3 and tells(err.splitlines()[-1], "line 4", "sentence")


def test_the_phrasebook_is_the_same_for_a_seed(driver: Driver, tmp_path: Path) -> None:
    def run() -> tuple[str, dict[str, bytes]]:
        ended = driver.run(tmp_path, "phrasebook", ["--output_dir=corpus", "--seed=3"], "")
        assert (ended.code, ended.err) == (0, "")
        return ended.out, {p.name: p.read_bytes() for p in (tmp_path / "corpus").iterdir()}

    out, files = run()
    counts = json.loads(out.splitlines()[-1])
    assert len(files) == 6
    for name, content in files.items():
        assert content.count(b"\n") == counts[name.partition(".")[0]] > 0
    assert run() == (out, files)


@pytest.mark.long
def test_scores_of_a_recipe_can_be_repeated(driver: Driver, tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipes")
    write_corpus(tmp_path / "corpus")
    flags = ["--recipe=recipes/animals", "--corpus_dir=corpus", "--work_dir=work"]
    code, out, err, _ = driver.run(tmp_path, "recipe", flags, "")
    assert code == 0, err
    results = json.loads(out.splitlines()[-1])
    assert results == json.loads((tmp_path / "work" / "results.json").read_text())
    seed = results["seeds"]["1"]
    assert (results["recipe"], results["finished"], seed["steps"]) == ("animals", True, 6)
    assert results["command"].endswith(f"keras-transformer recipe {' '.join(flags)}")
    assert (tmp_path / "work" / seed["export"] / "saved_model.pb").is_file()
    scores = seed["tests"]["animals"]
    _, *flags = shlex.split(scores["repeat"])
    code, out, err, _ = driver.run(tmp_path, "evaluate", flags, "")
    assert code == 0, err
    again = json.loads(out.splitlines()[-1])
    assert {name: again[name] for name in ("bleu", "chrf", "signature")}.items() <= scores.items()
