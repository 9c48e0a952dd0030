"""The binaries that use a run, in another process and in a fresh directory."""

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
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import tells
from tests.paper.recipes.recipes import write_corpus, write_recipe


@pytest.fixture(scope="module")
def run_dir(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(run_directory.path, tmp_path_factory.mktemp("copy") / "run"))


class Binaries:
    """The binaries in a directory, which is where they run."""

    def __init__(self, driver: Driver, directory: Path):
        self._driver = driver
        self._directory = directory

    def run(self, name: str, *arguments: object, text: bytes = b"") -> tuple[Any, str, str]:
        """Returns the exit code, the output and the errors."""
        return self._driver.run(self._directory, name, [*map(str, arguments)], text)[:3]


@pytest.fixture
def binaries(driver: Driver, tmp_path: Path) -> Binaries:
    """The binaries in a fresh directory."""
    return Binaries(driver, tmp_path)


def test_translate_keeps_every_line(binaries: Binaries, run_dir: Path, tmp_path: Path) -> None:
    lines = [PHRASES[0], "", "ball " * 3000, *PHRASES[1:], PHRASES[0] + "\r"]
    text = "\n".join(lines).encode()
    code, out, err = binaries.run("translate", f"--model_dir={run_dir}", text=text)
    translations = out.split("\n")[:-1]
    assert len(translations) == len(lines)
    assert translations[1] == ""
    assert translations[0] == translations[-1] != translations[3]
    assert code == 3
    assert [line.split(" has ")[0] for line in err.splitlines()[-2:]] == [
        "line 2 is empty, and so is its translation",
        "line 3",
    ]
    assert list(tmp_path.iterdir()) == []


def test_translate_keeps_the_lines_of_a_document(
    binaries: Binaries, run_dir: Path, tmp_path: Path
) -> None:
    first, second = (phrase.capitalize() + "." for phrase in PHRASES[:2])
    text = f"\ufeff{first}\r\n\r\n  {first} {second}\t{first}\n{'ball ' * 300}\n \n{second}"
    sentences = f"{first}\n{second}\n".encode()
    code, out, _ = binaries.run("translate", f"--model_dir={run_dir}", text=sentences)
    assert code == 0
    first, second = out.splitlines()
    code, out, err = binaries.run(
        "translate", f"--model_dir={run_dir}", "--document", text=text.encode()
    )
    head, end = f"{first}\r\n\r\n  {first} {second}\t{first}\n", f"\n \n{second}"
    assert out.startswith(head) and out.endswith(end)
    assert "\n" not in out.removeprefix(head).removesuffix(end)
    assert code == 3
    assert tells(err.splitlines()[-1], "line 4", "sentence")


ENSEMBLE = "run@step-00000100,run@step-00000300"
TEXT = "".join(f"{phrase}\n" for phrase in PHRASES)
PREFIXES = ("", "ein", "das", "", "zwei", "mit")
DRAWN = "translate --model_dir=run --sample --n_best=3 --set=decoding.temperature=2"
# Ways to translate TEXT, run one after the other in a single process.
WAYS = {
    "plain": "translate --model_dir=run",
    "compiled": "translate --model_dir=run --jit_compile",
    "bfloat16": "translate --model_dir=run --precision=bfloat16",
    "ensemble": f"translate --model_dir={ENSEMBLE}",
    "prefixes": "translate --model_dir=run --prefix=prefixes",
    "details": "translate --model_dir=run --format=jsonl --n_best=2 --prefix=prefixes",
    "attention": "translate --model_dir=run --format=jsonl --attention --output=attention.jsonl",
    "drawn": DRAWN,
    "drawn again": DRAWN,
    "drawn otherwise": f"{DRAWN} --set=decoding.seed=1",
    "evaluation": "evaluate --model_dir=run --precision=bfloat16 --source=text --reference=text "
    "--output=evaluated",
    "average": "average_checkpoints --run_dir=run --last=3",
    "export": "export --run_dir=run@step-00000100,run --precision=bfloat16 --n_best=2 "
    "--output_dir=export --valid_source=text --valid_target=text",
    "export without references": "export --run_dir=run --format=ctranslate2 "
    "--output_dir=ctranslate2 --valid_source=text",
    "exported": "translate --model_dir=export --format=jsonl",
    "exported to a file": "translate --model_dir=export --input=text --output=out.de",
}


class Ways(NamedTuple):
    """What they gave: the folder, and standard output by name."""

    folder: Path
    out: dict[str, str]

    def objects(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out[name].removesuffix("\n").split("\n")]


@pytest.fixture(scope="module")
def ways(
    driver: Driver, run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Ways:
    folder = tmp_path_factory.mktemp("ways")
    shutil.copytree(run_directory.path, folder / "run")
    (folder / "text").write_text(TEXT)
    (folder / "prefixes").write_text("".join(f"{prefix}\n" for prefix in PREFIXES))
    commands = [(*way.split(" ", 1), TEXT) for way in WAYS.values()]
    out = {}
    for name, ended in zip(WAYS, driver.run_all(folder, commands), strict=True):
        assert (name, ended.code, ended.err) == (name, 0, "")
        out[name] = ended.out
    return Ways(folder, out)


def test_a_compiled_search_finds_the_same(ways: Ways) -> None:
    assert ways.out["compiled"] == ways.out["plain"]


def test_precision_and_members_are_those_of_the_flags(ways: Ways) -> None:
    run = ways.folder / "run"
    members = ",".join(f"{run}@step-00000{step}00" for step in (1, 3))
    for name, model in (
        ("plain", loading.load_model(f"{run}@last")),
        ("bfloat16", loading.load_model(f"{run}@last", precision="bfloat16")),
        ("ensemble", loading.load_model(members)),
    ):
        found = translate.translate_lines(model, PHRASES)
        assert ways.out[name] == translate.format_translations(model, found)
    assert len({ways.out[name] for name in ("plain", "bfloat16", "ensemble")}) == 3


def test_translations_begin_with_the_lines_of_a_file(ways: Ways) -> None:
    texts = ways.out["prefixes"].split("\n")[:-1]
    for prefix, text, free in zip(PREFIXES, texts, ways.out["plain"].split("\n"), strict=False):
        assert text.startswith(prefix) and (prefix or text == free)
    details = ways.objects("details")
    assert [result["translations"][0]["text"] for result in details] == texts
    assert [len(result["translations"]) for result in details] == [2] * len(PHRASES)


def test_the_attention_comes_on_request(ways: Ways) -> None:
    assert ways.out["attention"] == ""
    lines = (ways.folder / "attention.jsonl").read_text().split("\n")[:-1]
    texts = []
    for result in map(json.loads, lines):
        (best,) = result["translations"]
        assert np.shape(best["attention"]) == (len(best["tokens"]), len(result["source_tokens"]))
        texts.append(best["text"])
    assert texts == ways.out["plain"].split("\n")[:-1]
    assert "attention" not in ways.objects("details")[0]["translations"][0]


def test_the_seed_decides_what_is_drawn(ways: Ways) -> None:
    assert ways.out["drawn"] == ways.out["drawn again"] != ways.out["drawn otherwise"]
    indices = [line.split(" ||| ")[0] for line in ways.out["drawn"].splitlines()]
    assert indices == [str(i // 3) for i in range(18)]


def test_an_average_in_an_ensemble_is_exported_and_explained(ways: Ways) -> None:
    average = "average-last-3-step-300"
    assert ways.out["average"] == (
        f"run now uses {average}, the average of its last 3 checkpoints\n"
    )
    assert tells(ways.out["export"], "exported", "export/1", "6")
    alone = ways.out["export without references"]
    assert tells(alone, "exported", "ctranslate2/1")
    run = ways.folder / "run"
    members = f"{run}@step-00000100,{run}@{average}"
    model = loading.load_model(members, {"decoding.n_best": 2}, precision="bfloat16")
    expected = translate.translate_in_detail(model, PHRASES)
    for theirs, ours in zip(ways.objects("exported"), expected, strict=True):
        assert theirs["source_tokens"] == ours["source_tokens"]
        for one, same in zip(theirs["translations"], ours["translations"], strict=True):
            assert one["ids"] == same["ids"]


def test_an_export_translates_from_file_to_file(ways: Ways) -> None:
    assert ways.out["exported to a file"] == ""
    rows = [line.split(" ||| ") for line in (ways.folder / "out.de").read_text().splitlines()]
    assert [int(index) for index, _, _ in rows] == [i // 2 for i in range(12)]
    assert float(rows[0][2]) >= float(rows[1][2])


def test_an_evaluation_in_bfloat16(ways: Ways) -> None:
    assert (ways.folder / "evaluated").read_text() == ways.out["bfloat16"]
    assert json.loads(ways.out["evaluation"].splitlines()[-1])["sentences"] == len(PHRASES)


def test_bytes_that_are_no_text_end_before_any_output(
    binaries: Binaries, run_dir: Path, tmp_path: Path
) -> None:
    code, out, err = binaries.run(
        "translate", f"--model_dir={run_dir}", "--output=out.de", text=b"good\nb\xe4d\n"
    )
    assert (code, out) == (1, "")
    assert tells(err.splitlines()[-1], "error:", "standard input", "line 2", "0xe4", "1")
    assert list(tmp_path.iterdir()) == []


def test_evaluate_ends_with_json(binaries: Binaries, run_dir: Path, tmp_path: Path) -> None:
    text = "".join(f"{phrase}\n" for phrase in PHRASES)
    (tmp_path / "test.en").write_text(text)
    (tmp_path / "test.de").write_text(text)
    code, out, err = binaries.run(
        "evaluate", f"--model_dir={run_dir}", "--source=test.en", "--reference=test.de",
        "--output=out.de", "--beam_size=1", "--lowercase",
    )  # fmt: skip
    assert code == 0, err
    human, speed, last = out.splitlines()
    assert human.startswith("BLEU ") and tells(speed, "translated")
    scores = json.loads(last)
    assert (
        scores["sentences"]
        == len(PHRASES)
        == len((tmp_path / "out.de").read_text().split("\n")) - 1
    )
    assert 0 <= scores["bleu"] < 100 and 0 <= scores["chrf"] < 100 and scores["seconds"] > 0
    assert scores["exact_match"] == 0
    assert "case:lc" in scores["signature"] and "case:lc" in scores["chrf_signature"]


def test_select_without_averaging(binaries: Binaries, run_dir: Path, tmp_path: Path) -> None:
    code, out, err = binaries.run(
        "average_checkpoints", f"--run_dir={run_dir}", "--select=step-00000200"
    )
    assert (code, out) == (0, f"{run_dir} now uses step-00000200\n"), err
    run = RunDirectory(run_dir)
    assert run.selected == "step-00000200"
    expected = run.read_weights(run.checkpoints()[1])
    selected = run.selected_weights()
    assert selected.keys() == expected.keys()
    assert all((selected[path] == expected[path]).all() for path in expected)


def test_phrasebook_writes_a_corpus_and_prints_its_baselines(
    binaries: Binaries, tmp_path: Path
) -> None:
    code, out, err = binaries.run("phrasebook", "--output_dir=corpus", "--seed=3")
    assert (code, err) == (0, "")
    *shown, last = out.splitlines()
    counts = json.loads(last)
    assert [line.split()[0] for line in shown] == list(counts)
    files = {path.name: path.read_bytes() for path in (tmp_path / "corpus").iterdir()}
    assert files.keys() == {
        f"{s}.{side}" for s in ("train", "valid", "test") for side in ("en", "de")
    }
    for name, content in files.items():
        assert content.count(b"\n") == counts[name.partition(".")[0]] > 0
    assert counts["train"] + counts["valid"] + counts["test"] == counts["phrases"]
    english, german = (files[f"test.{side}"].splitlines() for side in ("en", "de"))
    copied = sum(e == g for e, g in zip(english, german, strict=True)) / len(english)
    assert counts["copy_exact_match"] == copied
    assert 0 <= counts["nearest_phrase_exact_match"] < 0.2

    again = binaries.run("phrasebook", "--output_dir=corpus", "--seed=3")
    assert again == (0, out, "")
    assert {path.name: path.read_bytes() for path in (tmp_path / "corpus").iterdir()} == files


def test_recipe_ends_with_its_results(driver: Driver, tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipes")
    write_corpus(tmp_path / "corpus")
    flags = ["--recipe=recipes/animals", "--corpus_dir=corpus", "--work_dir=work"]
    code, out, err, _ = driver.run(tmp_path, "recipe", flags, "")
    assert code == 0, err
    results = json.loads(out.splitlines()[-1])
    assert results == json.loads((tmp_path / "work" / "results.json").read_text())
    seed = results["seeds"]["1"]
    assert (results["recipe"], results["finished"], seed["steps"]) == ("animals", True, 6)
    assert "seed 1     animals              BLEU" in out
    assert results["command"].endswith(
        "bin/recipe.py --recipe=recipes/animals --corpus_dir=corpus --work_dir=work"
    )
    assert results["machine"]["processor"] and results["machine"]["cores"] > 0
    assert (tmp_path / "work" / seed["export"] / "saved_model.pb").is_file()
    scores = seed["tests"]["animals"]
    _, *flags = shlex.split(scores["repeat"])
    assert flags[0] == f"--model_dir={Path('work') / 'seed-1' / 'export' / '1'}"
    code, out, err, _ = driver.run(tmp_path, "evaluate", flags, "")
    assert code == 0, err
    again = json.loads(out.splitlines()[-1])
    assert [again[name] for name in ("bleu", "chrf", "signature")] == [
        scores[name] for name in ("bleu", "chrf", "signature")
    ]
