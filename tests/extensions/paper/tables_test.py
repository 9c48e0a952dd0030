"""Tables 2 and 3: rows against sizes worked out by hand, their runner, the table and the chart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost import Sizes
from benchmarks.cost import training_flop as benchmarks_training_flop
from keras_transformer.api.training import prepare
from keras_transformer.config import Config, ModelConfig
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.paper import experiment, report, tables
from keras_transformer.extensions.paper.baselines.gru import GRURun
from keras_transformer.extensions.paper.presets import TABLE_3
from keras_transformer.inference import loading
from keras_transformer.models.encoder_decoder import get_architecture
from keras_transformer.presets import preset, resolve_config
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.training import training_run
from tests.builders import PAIRS, refuses, tiny_data
from tests.extensions.paper.baselines.tiny import MODELS, make
from tests.messages import mentions, tells

# `tiny` has 4 + 4 layers, d_model 128, d_ff 256, 4 heads of 32 and 3,000 steps.
BASE: dict[str, Any] = {
    "N": 4, "d_model": 128, "d_ff": 256, "h": 4, "d_k": 32, "d_v": 32, "P_drop": 0.1,
    "eps_ls": 0.1, "positions": "sinusoidal", "steps": 3000,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "base": {},
    "A_h1": {"h": 1, "d_k": 128, "d_v": 128},  # 4 / 8 is a half, which makes 1
    "A_h4": {"h": 2, "d_k": 64, "d_v": 64},
    "A_h16": {"h": 8, "d_k": 16, "d_v": 16},
    "A_h32": {"h": 16, "d_k": 8, "d_v": 8},
    "B_dk16": {"d_k": 8},
    "B_dk32": {"d_k": 16},
    "C_n2": {"N": 1},  # 4 · 2/6 = 1.33
    "C_n4": {"N": 3},  # 2.67
    "C_n8": {"N": 5},  # 5.33
    "C_d256": {"d_model": 64, "d_k": 16, "d_v": 16},
    "C_d1024": {"d_model": 256, "d_k": 64, "d_v": 64},
    "C_ff1024": {"d_ff": 128},
    "C_ff4096": {"d_ff": 512},
    "D_dropout0.0": {"P_drop": 0.0},
    "D_dropout0.2": {"P_drop": 0.2},
    "D_smoothing0.0": {"eps_ls": 0.0},
    "D_smoothing0.2": {"eps_ls": 0.2},
    "E_learned": {"positions": "learned"},
    "big": {"d_model": 256, "d_ff": 512, "h": 8, "P_drop": 0.3, "steps": 9000},
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load(tiny_data())


@pytest.fixture(scope="module")
def tiny(vocabulary: Vocabulary) -> list[tables.TableRow]:
    return tables.table3("tiny", {}, vocabulary)


def config_of(row: tables.TableRow) -> Config:
    assert row.config is not None
    return row.config


def test_rows_of_table_3_on_tiny(tiny: list[tables.TableRow], vocabulary: Vocabulary) -> None:
    assert [row.name for row in tiny] == list(TINY) and not any(row.same_as for row in tiny)
    for row in tiny:
        config = config_of(row)
        expected = {name: str(value) for name, value in {**BASE, **TINY[row.name]}.items()}
        assert tables.columns(config) == expected, row.name
        assert row.published == TABLE_3[row.name]
        # The settings turn the preset into the row.
        made = resolve_config(preset("tiny"), row.settings, vocabulary)
        assert made.settings() == config.settings(), row.name
        # Everything else is as in base: the budget, the search and the vocabulary.
        of_base = config_of(tiny[0])
        fields = [field for fields in tables.COLUMNS.values() for field in fields]
        assert config.updated({name: tables._get(of_base, name) for name in fields}) == of_base
    rules = {row.name: row.title for row in tiny}
    assert rules["base"] == ""
    assert rules["A_h1"] == "h × 1/8, d_k × 8, d_v × 8"
    assert rules["D_smoothing0.0"] == "eps_ls 0.0"
    assert rules["big"] == "d_model × 2, d_ff × 2, h × 2, P_drop 0.3, steps × 3"
    training = config_of(tiny[0]).training
    assert (training.schedule, training.learning_rate) == ("noam", 1.0)


@pytest.mark.parametrize("name", TINY)
def test_on_the_papers_base_they_are_the_papers(name: str) -> None:
    # Big keeps 20 checkpoints to average them, which Table 3 does not.
    expected = preset(name).updated({"training.keep_checkpoints": 5})
    assert tables.scaled(name, preset("base")) == expected


def test_sizes_are_at_least_one_and_halves_are_rounded_up() -> None:
    base = Config().updated({"model.num_encoder_layers": 1, "model.num_decoder_layers": 6})
    assert tables.columns(tables.scaled("C_n2", base))["N"] == "1/2"
    assert tables.columns(tables.scaled("C_n4", base))["N"] == "1/4"
    base = Config().updated({"model.d_model": 60, "model.num_heads": 5, "model.d_ff": 5})
    assert base.model.key_dim == 12
    one, half = tables.scaled("A_h1", base).model, tables.scaled("A_h4", base).model
    assert (one.num_heads, one.key_dim) == (1, 60)  # 5/8
    assert (half.num_heads, half.key_dim, half.value_dim) == (3, 20, 20)  # 5/2
    assert tables.scaled("C_ff1024", base).model.d_ff == 3


def test_settings_are_in_all_rows_and_equal_rows_are_marked(vocabulary: Vocabulary) -> None:
    settings = {
        "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 32,
        "model.num_heads": 2, "training.label_smoothing": 0.2, "training.seed": "7",
        "training.max_steps": "10",
    }  # fmt: skip
    rows = tables.table3("tiny", settings, vocabulary)
    assert {config_of(row).training.seed for row in rows} == {7}
    assert [config_of(row).training.max_steps for row in rows] == [10] * 19 + [30]
    assert {row.name: row.same_as for row in rows if row.same_as} == {
        "A_h4": "A_h1",  # 2/8 and 2/2 heads
        **dict.fromkeys(("C_n2", "C_n4", "C_n8", "D_smoothing0.2"), "base"),
    }
    # If d_k is not given, it is d_model / h.
    sizes = {"model.d_model": 256, "model.key_dim": 32, "model.value_dim": 32}
    for row in tables.table3("tiny", sizes, vocabulary):
        assert resolve_config(preset("tiny"), row.settings, vocabulary) == row.config


def test_rows_are_chosen_by_name_and_by_group(tiny: list[tables.TableRow]) -> None:
    def chosen(*names: str) -> list[str]:
        return [row.name for row in tables.chosen_rows(tiny, names)]

    assert chosen() == list(TINY)
    assert chosen("E", "B") == ["base", "B_dk16", "B_dk32", "E_learned"]
    assert chosen("big", "A_h1", "A_h1") == ["base", "A_h1", "big"]
    assert [row.name for row in tables.chosen_rows(tables.table2({}), ["gru"])] == ["gru"]


def test_models_of_table_2_have_the_same_training_search_and_size() -> None:
    sizes = {"model.source_vocab_size": 4000, "model.target_vocab_size": 4000}
    configs = [
        get_architecture(row.architecture).run_config().updated({**row.settings, **sizes})
        for row in tables.table2({})
    ]
    assert all(8.7e6 < config.model.num_parameters() < 9.3e6 for config in configs)
    assert all(config.training == configs[0].training for config in configs)
    assert all(config.decoding == configs[0].decoding for config in configs)


# The runner, without training.


@pytest.fixture(scope="module")
def data() -> Path:
    return tiny_data()


DRAW = report.draw  # takes a second


class Rows:
    """Replaces `call_in_process`: records the arguments, and returns the results in `found`."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[Any, ...]] = {}
        self.found: dict[str, Any] = {}

    def __call__(self, function: Any, directory: Path, *arguments: Any) -> dict[str, Any]:
        assert function is tables.train_row
        self.jobs[directory.name] = arguments
        (directory / "run").mkdir(parents=True, exist_ok=True)
        found = self.found.get(directory.name, {})
        if isinstance(found, BaseException):
            raise found
        return {
            "finished": True, "steps": 3000, "perplexity": 6.5, "bleu": 31.25, "signature": "s|13a",
            "parameters": 3, "precision": "float32", "training_minutes": 9.0, "flop": 2e12, **found,
        }  # fmt: skip


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(experiment, "call_in_process", rows)
    monkeypatch.setattr(report, "draw", lambda path, *drawn: path.write_text(f"{drawn}"))
    return rows


def cells(table: str) -> dict[str, dict[str, str]]:
    """Returns the cells of a table by row and column."""
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.split("\n\n")[0].splitlines()
    ]
    assert len({len(line) for line in lines}) == 1
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_rows_are_trained_once_shown_and_added(data: Path, tmp_path: Path, rows: Rows) -> None:
    rows.found = {"B_dk16": {"perplexity": 7.0, "bleu": 30.0}, "E_learned": {"bleu": 31.35}}
    work = tmp_path / "work"
    table, results = tables.run_table3(data, work, names=["B"], tokenize="none")
    assert list(rows.jobs) == ["base", "B_dk16", "B_dk32"] == list(results["rows"])
    assert results["finished"] and results["rows"]["B_dk16"]["bleu"] == 30.0
    minutes, row, job = rows.jobs["B_dk16"]
    assert minutes is None and row.settings["model.key_dim"] == 8
    assert job["scoring"] == {"tokenize": "none", "lowercase": False}
    assert len((work / "reference").read_text().splitlines()) == 4
    assert table == (work / "table.md").read_text()
    base, other, _ = cells(table).values()
    assert {name: base[name] for name in BASE} == {name: str(v) for name, v in BASE.items()}
    expected = {
        "change": "d_k × 1/4", "d_k": "8", "h": "", "minutes": "9.0", "FLOP": "2.00e+12",
        "PPL": "7.00", "BLEU": "30.0", "ΔPPL": "+0.50", "ΔBLEU": "-1.2", "published: PPL": "5.16",
        "published: BLEU": "25.1", "published: 10⁶": "58", "published: ΔPPL": "+0.24",
        "published: ΔBLEU": "-0.7",
    }  # fmt: skip
    assert expected.items() <= other.items() and base["ΔPPL"] == ""
    assert "s|13a" in table and "B_dk32" in (work / "chart.svg").read_text()

    rows.jobs = {}
    assert tables.run_table3(data, work, names=["B"], tokenize="none") == (table, results)
    assert rows.jobs == {}
    _, more = tables.run_table3(data, work, names=["E"], tokenize="none")
    assert list(rows.jobs) == ["E_learned"]
    assert list(more["rows"]) == ["base", "B_dk16", "B_dk32", "E_learned"]


def test_a_stopped_row_is_resumed_and_a_diverged_row_is_a_result(
    data: Path, tmp_path: Path, rows: Rows
) -> None:
    work = tmp_path / "work"
    rows.found = {"B_dk16": {"finished": False, "bleu": None, "perplexity": None}}
    table, results = tables.run_table3(data, work, names=["B"], max_minutes=60)
    assert not results["finished"] and list(rows.jobs) == ["base", "B_dk16"]
    assert 59 < rows.jobs["B_dk16"][0] <= rows.jobs["base"][0] <= 60
    assert "B_dk16 is not finished." in table and "B_dk32 is not finished." in table
    rows.jobs, rows.found = {}, {"B_dk16": InputError("it is too large")}
    with pytest.raises(InputError, match="^B_dk16: it is too large$"):
        tables.run_table3(data, work, names=["B"])
    diverged = {"diverged": "no number", "bleu": None, "perplexity": None}
    rows.jobs, rows.found = {}, {"B_dk16": diverged}
    table, results = tables.run_table3(data, work, names=["B"])
    assert results["finished"] and list(rows.jobs) == ["B_dk16", "B_dk32"]
    row = cells(table)["B_dk16"]
    assert (row["PPL"], row["BLEU"], row["ΔBLEU"]) == ("diverged", "", "")
    assert "B_dk16, diverged" in (work / "chart.svg").read_text()


def test_equal_rows_are_one_run(data: Path, tmp_path: Path, rows: Rows) -> None:
    settings = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    settings["model.num_heads"] = 2
    table, results = tables.run_table3(
        data, tmp_path / "work", names=["A_h4", "C_n2"], settings=settings
    )
    # Half of 2 heads is 1, and so is an eighth; a third of 1 layer is 1 again.
    assert list(results["rows"]) == ["base", "A_h1", "A_h4", "C_n2"]
    assert list(rows.jobs) == ["base", "A_h1"] and results["finished"]
    assert cells(table)["C_n2"]["ΔBLEU"] == "+0.0"
    assert "A_h4 equals A_h1 on this base" in table and "C_n2 equals base on this base" in table


def test_a_directory_of_another_experiment_is_an_error(
    data: Path, tmp_path: Path, rows: Rows
) -> None:
    work = tmp_path / "work"
    tables.run_table3(data, work, names=["base"])
    prepare(pairs=PAIRS[:12], output_dir=tmp_path / "other", vocab_from=data, valid_pairs=2)
    start = "work was started with "
    for message, changes in (
        (start + "base: training.seed .not set., not 2. Use", {"settings": {"training.seed": 2}}),
        (start + "preset_base 'tiny', not 'small'", {"preset_base": "small"}),
        (start + "bleu: tokenize '13a', not 'none'", {"tokenize": "none"}),
        (start + "data: train '", {"data_dir": tmp_path / "other"}),
    ):
        with pytest.raises(InputError, match=message):
            tables.run_table3(**{"data_dir": data, "work_dir": work, "names": ["base"], **changes})
    # Defaults are left out, so that it fits a version with more settings.
    found = json.loads((work / "experiment.json").read_text())
    assert "training.auxiliary_loss_weight" not in found["base"]
    assert list(rows.jobs) == ["base"]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"max_minutes": 0}, ("max_minutes", "0")),
        ({"tokenize": "14a"}, ("14a", "tokenizer")),
        ({"names": ["A1"]}, ("row", "A1", "A", "B", "C")),
        ({"preset_base": "huge"}, ("huge", "preset")),
        ({"settings": {"training.steps": 3}}, ("training.steps", "setting")),
        ({"settings": {"training.ema_decay": 0.9}}, ("training.ema_decay", "0.9", "0")),
        ({"settings": {"training.early_stopping": 3}}, ("training.early_stopping", "3")),
        (
            {"settings": {"model.d_model": 6, "model.num_heads": 2}},
            ("tiny", "C_d256", "model.d_model"),
        ),
        ({"data_dir": "nowhere"}, ("nowhere",)),
        ({"test": EvaluationSet([["a"]], ["b"]), "names": ["lstm"]}, ("row", "lstm")),
        (
            {"test": EvaluationSet([["a"]], ["b"]), "settings": {"training.seed": "x"}},
            ("training.seed", "x"),
        ),
    ],
)
def test_invalid_input_is_reported_before_anything_is_written(
    data: Path, tmp_path: Path, rows: Rows, arguments: dict[str, Any], facts: tuple[str, ...]
) -> None:
    run = tables.run_table2 if "test" in arguments else tables.run_table3
    refuses(run, {"data_dir": data, "work_dir": tmp_path / "work", **arguments}, *facts)
    assert rows.jobs == {} and list(tmp_path.iterdir()) == []


def test_table_2(data: Path, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw", DRAW)
    test = EvaluationSet([["zwei"]], ["two"])
    rows.found = {"gru": {"commit": "def"}, "transformer": {"parameters": 62_984_192}}
    table, results = tables.run_table2(data, tmp_path / "work", test)
    found = cells(table)
    assert list(found) == ["transformer", "convolutional", "gru"] == list(results["rows"])
    expected = {"change": "GRU with attention", "published: BLEU": "28.1"}
    assert expected.items() <= found["gru"].items()
    assert found["transformer"]["10⁶"] == "63" and "published: PPL" not in found["gru"]
    assert tells(table, "Results from different commits", "def on")
    chart = (tmp_path / "work" / "chart.svg").read_text()
    assert chart.startswith("<?xml") and "gru" in chart and "training FLOP" in chart
    with pytest.raises(InputError, match=mentions("data and test")):
        tables.run_table2(data, tmp_path / "work", test, tokenize="none")


def test_the_chart_has_a_dot_for_each_row_here_and_in_the_paper(
    tiny: list[tables.TableRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(report, "draw", lambda _, *arguments: drawn.extend(arguments))
    records = {"base": {"bleu": 31.46, "flop": 1e9}, "A_h1": {"bleu": 31.04}, "A_h4": {}}
    tables.draw(tiny[:3], records, tmp_path)
    names, panels = drawn
    bleu, flop = panels.values()
    assert names == ["base", "A_h1", "A_h4"] and flop == {"here": [1e9, None, None]}
    assert bleu == {"here": [0, -0.42, None], "published": [0, -0.9, -0.3]}


def test_rows_of_different_precisions_have_a_note(tiny: list[tables.TableRow]) -> None:
    origin = {"finished": True, "commit": "a", "machine": {"processor": "p"}}
    same = {row.name: {**origin, "precision": "float32"} for row in tiny[:2]}
    assert "different" not in tables.markdown(tiny[:2], same)
    same["A_h1"]["precision"] = "bfloat16"
    assert "base: a on p, float32; A_h1: a on p, bfloat16." in tables.markdown(tiny[:2], same)


# Training.

# A model that learns eight pairs in seconds.
MEMORY: dict[str, Any] = {
    "model.d_model": 16,
    "model.units": 24,
    "model.dropout": 0.0,
    "training.learning_rate": 0.01,  # with 0.02, rounding decides whether 60 steps are enough
    "training.schedule": "constant",
    "training.warmup_steps": 5,
    "training.label_smoothing": 0.0,
    "training.max_steps": 100,
    "training.checkpoint_steps": 50,
    "training.bleu_steps": 100,
    "decoding.beam_size": 2,
}


@pytest.mark.long  # trains for 100 steps; no other test scores a row
@pytest.mark.usefixtures("one_replica")
def test_a_row_is_trained_validated_and_scored(tmp_path: Path) -> None:
    pairs, data_dir = PAIRS[:8], tmp_path / "data"
    sides = [list(side) for side in zip(*pairs, strict=True)]
    options: Any = {"vocab_size": 50, "augment": {}, "num_workers": 1}
    prepare(pairs=pairs, output_dir=data_dir, valid_pairs=pairs, **options)
    *_, row = tables.table2(MEMORY)
    job = {"data_dir": data_dir, "preset": None, "weights": "best", "scoring": {}}
    job["test"] = EvaluationSet([sides[1]], sides[0])
    result = tables.train_row(tmp_path / "gru", None, row, job)
    assert result["finished"] and (result["steps"], result["weights"]) == (100, "best")
    assert result["bleu"] == pytest.approx(100) and 1.0 <= result["perplexity"] < 1.1
    assert (tmp_path / "gru" / "translations").read_text().splitlines() == sides[1]
    run = RunDirectory(tmp_path / "gru" / "run", GRURun)
    assert result["parameters"] == run.config.model.num_parameters()
    store = TokenStore(data_dir / "train")
    once = tables.training_flop(run.config.model, store.source.lengths, store.target.lengths)
    assert result["flop"] == pytest.approx(100 * once), "all pairs are one batch"
    # Runs of a baseline load with their architecture only.
    with pytest.raises(InputError, match=mentions("run/config.json", "gru", "transformer")):
        training_run.train(data_dir, run.path, "tiny")
    assert type(loading.load_translator(run).transformer) is get_architecture("gru")


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (DivergedError("no number"), "base", "^no number$"),
        (InputError("too large"), "A_h1", "^too large.*leave out"),
        (DivergedError("no number"), "A_h1", None),
        (None, "A_h1", None),
    ],
)
def test_errors_and_divergence_of_a_row(
    data: Path, tmp_path: Path, tiny: list[tables.TableRow], run_directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch, error: InputError | None, name: str, message: str | None,
) -> None:  # fmt: skip
    def train(_: Any, run_dir: Path, *__: Any, **___: Any) -> training_run.TrainingResult:
        of = run_directory
        RunDirectory.create(run_dir, of.config, of.tokenizer(), of.data_fingerprint)
        if error:
            raise error
        return training_run.TrainingResult(60, True, False, "", "last", "float32", {})

    monkeypatch.setattr(training_run, "train", train)
    [row] = [row for row in tiny if row.name == name]
    job = {"data_dir": data, "preset": "tiny", "weights": "last", "scoring": {}, "test": None}
    if message is None:
        found = tables.train_row(tmp_path / name, None, row, job)
        assert found["finished"] and found["parameters"] > 0
        facts = ["no number"] if error else ["run", "60", "training.learning_rate"]
        assert tells(found["diverged"], *facts)
        return
    with pytest.raises(InputError, match=message):
        tables.train_row(tmp_path / name, None, row, job)


# FLOP.


@pytest.mark.parametrize("name", MODELS)
def test_the_formula_counts_each_weight_once_a_token(name: str) -> None:
    model, weights = make(name)
    config: Any = model.config
    rows, s, t = 2, 5, 4
    # A pair of tokens takes part in a score and in a weighted mean of the memory.
    pair = 3 * config.units if name == "gru" else 2 * 2 * config.d_model  # of two layers
    expected = s * t * pair
    for path, array in weights.items():
        if path.startswith(("encoder", "keys")) and "kernel" in path:
            expected += s * array.size
        elif path == "first_state/kernel":
            expected += array.size
        elif "kernel" in path or path == "embedding/embeddings":  # the output is the embedding
            expected += t * array.size
    flop = tables.training_flop(config, np.full(rows, s), np.full(rows, t))
    assert flop == 3 * 2 * rows * expected


def test_the_transformers_is_that_of_the_benchmarks() -> None:
    config = ModelConfig(d_model=64, d_ff=96, num_heads=4, key_dim=8, value_dim=20)
    sizes = Sizes(6, 6, 64, 96, 4, 8, 20, config.target_vocab_size)
    source, target = np.array([3, 17, 9]), np.array([5, 12, 30])
    assert tables.training_flop(config, source, target) == benchmarks_training_flop(
        sizes, source, target
    )
