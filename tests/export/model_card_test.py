"""The model card states the known facts, and marks all others as not known."""

import json
import shutil

import pytest
import yaml

from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.manifest import describe_version
from keras_transformer.export.model_card import model_card
from keras_transformer.export.saved_model.deployment import version_facts
from keras_transformer.export.saved_model.exporter import EXPORTER
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory

SCORES = Scores(31.4159, 55.5, "nrefs:1|case:mixed", "nc:6", exact_match=0.1, sentences=1000)


@pytest.fixture(scope="module")
def facts(exported_run):
    return version_facts(exported_run / "1", EXPORTER.request)


def write_card(run, facts, languages=None, license=None, **arguments):
    manifest = describe_version(run, loading.load_translator(run), "float32")
    manifest |= {"languages": languages, "license": license, "bytes": 1234}
    runs = [member for member, _ in loading.members(run)]
    return model_card("de-en_model", manifest, runs, facts, **arguments)


def front_matter(card):
    assert card.startswith("---\n")
    return dict(yaml.safe_load(card.split("---\n")[1]))


def test_known_facts_are_stated(run_directory, facts):
    scores = {"scores": SCORES, "test_set": "newstest2013.de"}
    card = write_card(run_directory, facts, ("de", "en"), "cc-by-4.0", **scores)
    fields = front_matter(card)
    assert (fields["language"], fields["license"]) == (["de", "en"], "cc-by-4.0")
    assert (fields["pipeline_tag"], fields["metrics"]) == ("translation", ["bleu", "chrf"])
    for known in (
        "text with n tokens has at most n + 5 tokens",
        "translates text. Languages: de to en.", "BLEU | 31.42 | `nrefs:1\\|case:mixed`",
        "On newstest2013.de:", f"`{run_directory.data_fingerprint}`",
        f"{run_directory.config.model.num_parameters():,}", "more than 40 tokens",
        "`last`", "step | 300", "beam search with 4 hypotheses, α = 0.6", "Model: `cc-by-4.0`",
        "translate_ids` | ids: int32[B, 40], lengths: int32[B] |", "1,234 bytes",
    ):  # fmt: skip
        assert known in card, known
    [line] = [line for line in card.splitlines() if " curl " in line]
    assert line.endswith("http://localhost:8501/v1/models/export:predict")
    inputs = json.loads(line.split("'")[1])["inputs"]
    assert set(inputs) == set(facts.signatures["serving_default"]["inputs"])


def test_unknown_facts_are_not_guessed(run_directory, facts):
    card = write_card(run_directory, facts)
    assert set(front_matter(card)) == {"model_name", "license", "pipeline_tag", "tags"}
    assert front_matter(card)["license"] == "unknown"
    for unknown in (
        "Languages: not known.", "Scores on a test set: not known.", "training pairs | not known",
        "Longest source in training: not known", "not stated",
    ):  # fmt: skip
        assert unknown in card, unknown


def test_the_card_states_the_training_data_and_steps_of_a_run(run_directory, facts, tmp_path):
    run = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))
    report = {
        "train": {"pairs": 1000, "source": {"max_length": 37}},
        "inputs": {"train": [{"sha256": {"/secret/train.de": "abc", "train.en": "def"}}]},
    }
    (run.path / "data_report.json").write_text(json.dumps(report))
    weights = run.read_weights(run.checkpoints()[-1])
    run.save_checkpoint(400, weights, {}, {})
    text = write_card(f"{run.path}@last,{run.path}@step-00000100", facts)
    for known in (
        "training pairs | 1,000 |", "Longest source in training: 37 tokens",
        "| training corpus | train.de, SHA-256 `abc` |",
        "| training corpus | train.en, SHA-256 `def` |",
        "averaging the probabilities of 2 models", "step | 100",
    ):  # fmt: skip
        assert known in text, known
    assert "secret" not in text
    run.save_average("average-last-2-step-400", weights)
    for damaged in ("[", "[]", '{"train": 1}', '{"train": {"pairs": "3"}}'):
        (run.path / "data_report.json").write_text(damaged)
        text = write_card(f"{run.path}@{run.selected}", facts)
        assert "step | 400" in text and "training pairs | not known" in text
