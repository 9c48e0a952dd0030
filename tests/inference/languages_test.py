"""Models with a token for each of their languages, such as M2M-100, with random weights."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import plugins
from keras_transformer.config import Config
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import check_names
from keras_transformer.export import ExportOptions, export
from keras_transformer.export.probes import probe_texts
from keras_transformer.export.request_params import clean_source_ids
from keras_transformer.extensions.huggingface.tensors import check_expressible
from keras_transformer.extensions.pages.attention import attention, open_visible_model
from keras_transformer.inference import Translation, scoring, translate
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import load_model, load_translator
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary
from tests.builders import PHRASES, SHARED_RUNS, refuses, weekly
from tests.conftest import random_shortlist
from tests.driver import CommandResult, Driver
from tests.export.model_variants import make_run
from tests.extensions.serving.running_server import running_server
from tests.inference.scoring_test import forward_pass
from tests.messages import tells

BALL = "a red ball"
# Texts, and the languages at the start of their ids.
TAGGED = {
    BALL: "bb aa",
    f">>cc<< {BALL}": "cc aa",
    f">>cc<<{BALL}": "cc aa",
    f" >>cc<<  >>bb<< {BALL}": "cc bb",
    f"＞＞cc＜＜ {BALL}": "cc aa",
    "a >>cc<< ball": "bb aa",
    ">>cc<<>>bb<< ball": "cc aa",
    ">>cc<< >>bb<< >>aa<< ball": "cc bb",
    ">>dd<< ball": "bb aa",
    **dict.fromkeys(["", " ", ">>cc<<", ">>cc<< >>bb<<"], ""),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("languages") / "run"
    run = make_run(path, "languages", decoding__no_repeat_ngram=1, decoding__max_extra_tokens=2)
    SHARED_RUNS.add(path.resolve())
    return run


@pytest.fixture(scope="module")
def module(run: RunDirectory) -> TranslationModule:
    return load_translator(run.path)


def outputs(engine: Engine, texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Returns translations and scores, of one text at a time."""
    rows = [engine.translate(np.array([text.encode()], object)) for text in texts]
    translations = [np.asarray(row["translations"])[0, 0].decode() for row in rows]
    return translations, np.array([np.asarray(row["scores"])[0, 0] for row in rows])


def test_source_ids_begin_with_the_languages(module: TranslationModule) -> None:
    vocabulary = module.tokenizer.vocabulary
    assert vocabulary.languages == ("aa", "bb") and vocabulary.shares_ids
    plain = Vocabulary(vocabulary.source_model)
    texts = [*TAGGED, *probe_texts(vocabulary, PHRASES)]
    rows, given = (
        of.encode_source([text.encode() for text in texts]) for of in (vocabulary, plain)
    )
    for codes, ids, own in zip(TAGGED.values(), rows, given, strict=False):
        first = [vocabulary.language_ids[code] for code in codes.split()]
        is_tag = [i in vocabulary.language_ids.values() for i in own[:2]]
        assert ids == [*first, *own[is_tag.index(False) if False in is_tag else 2 :]]
    assert module.tokenizer.tokenize_source(tf.constant(texts)).to_list() == rows
    # Clients may send ids without languages.
    sent = tf.ragged.constant(given[: len(TAGGED)], tf.int32)
    lengths = tf.cast(sent.row_lengths(), tf.int32)
    ids, used, _ = clean_source_ids(module, sent.to_tensor(7), lengths)
    assert tf.RaggedTensor.from_tensor(ids, lengths=used).to_list() == rows[: len(TAGGED)]


def test_a_long_source_ends_with_the_end_token(module: TranslationModule) -> None:
    ids, lengths, is_cut = module.source_ids(tf.constant(["ball " * 60]))
    limit = module.max_source_tokens
    assert (lengths[0], len(ids[0]), is_cut[0]) == (limit, limit, True)
    assert ids[0, -1] == module.tokenizer.end_id
    long = tf.fill([1, limit], ids[0, 5])
    cleaned, used, _ = clean_source_ids(module, long, tf.constant([limit]))
    assert used[0] == limit and cleaned[0, :2].numpy().tolist() == ids[0, :2].numpy().tolist()
    assert cleaned[0, -1] == module.tokenizer.end_id


def test_translations_begin_with_the_language_and_then_the_prefix(
    module: TranslationModule,
) -> None:
    texts, prefixes = [BALL, f">>cc<< {BALL}", ""], ["das", "", "das"]
    tensors = module.translate_verbose(texts, prefixes)
    found = {name: tensor.numpy() for name, tensor in tensors.items()}
    assert [row[0, 0].decode() for row in found["tokens"][:2]] == ["▁>>bb<<", "▁>>cc<<"]
    assert found["translations"][0, 0].startswith(b"das") and found["lengths"][2, 0] == 0
    assert b">>" not in b"".join(found["translations"][:, 0])
    assert found["token_log_probs"][:, 0, 0].tolist() == [0, 0, 0]
    # The length of a score includes the language.
    np.testing.assert_allclose(found["scores"][:2], found["log_probs"][:2] / found["lengths"][:2])
    ids = [found["ids"][i, 0, : found["lengths"][i, 0]].tolist() for i in (0, 1)]
    scored = scoring.score_ids(scoring.Scorer(module), texts[:2], ids)
    np.testing.assert_allclose([row.sum() for row in scored], found["log_probs"][:2, 0], atol=1e-4)


def test_unknown_tokens_are_replaced_by_words_behind_the_languages(
    module: TranslationModule,
) -> None:
    texts = module.tokenizer.source_texts(tf.constant([BALL, f">>cc<< {BALL}", ""])).numpy()
    plain = Vocabulary(module.tokenizer.vocabulary.source_model).encode_source([BALL.encode()])
    assert b"".join(texts[0]).decode() == BALL and not any(texts[0][:2]) and not any(texts[2])
    assert texts[1][:2].tolist() == [b">>cc<<", b""]
    assert all(texts[0][2 : 1 + len(plain[0])])


def test_scores_of_targets_leave_out_the_language(module: TranslationModule) -> None:
    scorer, target = scoring.Scorer(module), "das Haus"
    vocabulary = module.tokenizer.vocabulary
    for source in (BALL, f">>cc<< >>bb<< {BALL}"):
        [ids] = vocabulary.encode_source([source.encode()])
        [row] = vocabulary.encode_target([target.encode()])
        [result] = scoring.score_pairs(scorer, [source], [target])
        expected = forward_pass(scorer, ids, [ids[0], *row])
        np.testing.assert_allclose(result, [0, *expected[1:]], atol=1e-4)
        found = scorer.score(tf.constant([source]), tf.constant([target]))
        assert found["log_probs"].numpy()[0] == pytest.approx(expected[1:].sum(), abs=1e-4)
        assert found["lengths"].numpy()[0] == len(row) + 1


@pytest.fixture(scope="module")
def version_of(
    run: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns a function from formats to versions whose default languages are cc and aa."""

    @functools.cache
    def version(format: str) -> Path:
        own: Any = {"weights": "float32", "source_language": "cc", "target_language": "aa"}
        folder, options = tmp_path_factory.mktemp(format), ExportOptions.of(**own)
        return export(run.path, folder, [BALL], options, format=format).path

    return version


@pytest.mark.parametrize("format", ["saved_model", "ctranslate2", weekly("litert"), weekly("cpu")])
def test_exports_translate_like_the_run(
    format: str, run: RunDirectory, version_of: Callable[[str], Path]
) -> None:
    """`export` compares the languages of the export, and this test tags and other languages."""
    path = version_of(format)
    engine, settings = load_model(path), {}
    if format == "ctranslate2":  # it has another search
        settings = {"decoding.no_repeat_ngram": 0}
        same = {"decoding.max_extra_tokens": 2, "decoding.length_penalty": 1}
        engine = engine.with_settings(same)
    original = load_model(run.path, settings)
    assert (engine.source_language, engine.target_language) == ("cc", "aa")
    assert (engine.source_tag, original.source_tag) == (">>aa<< >>cc<<", ">>bb<< >>aa<<")
    texts = [BALL, "the old house", f">>bb<< {BALL}", f">>cc<< >>bb<< {BALL}", ""]
    for languages in (("cc", "aa"), ("aa", "bb")):
        expected = outputs(translate.with_languages(original, *languages), texts)
        if languages == ("cc", "aa"):  # those of the export
            languages = None, None
        found = outputs(translate.with_languages(engine, *languages), texts)
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
    assert len({*expected[0]}) > 3


def test_wrong_languages_and_formats_are_refused(
    run: RunDirectory, run_directory: RunDirectory, tmp_path: Path
) -> None:
    model = load_model(run.path)
    refuses(translate.with_languages, (model, None, "ab"), "ab", "language", "aa")
    refuses(load_translator(run.path).with_languages, ("dd", None), "dd", "aa, bb, cc")
    other = load_model(run_directory.path)
    assert translate.with_languages(other, "es", None).source_language == "es"
    refuses(translate.with_languages, (other, None, "de"), "target_language", "de", "source_tag")
    refuses(load_translator(run_directory.path).with_languages, (None, "de"), "languages")
    arguments: Any = {"run": run.path, "output_dir": tmp_path / "new", "sentences": [BALL]}
    arguments["options"] = ExportOptions(languages=("en", "de"))
    for format, fact in (("huggingface", "MarianMT"), ("argos", "begin")):
        refuses(export, {**arguments, "format": format}, fact)
    options = ExportOptions(shortlist=random_shortlist(run, 2))
    prepare = plugins.find("exporters", "ctranslate2").prepare
    refuses(prepare, (load_translator(run.path), options), "language", "CTranslate2", "shortlist")
    config = Config().updated(model__forced_language=True).model
    refuses(check_expressible, (config,), "forced_language", "MarianMT")


def test_of_many_languages_the_closest_are_named() -> None:
    codes = [f"{language}_Latn" for language in "ces dan deu ell eng".split()]
    names = [*codes, *(f"x{number}" for number in range(100))]
    refuses(check_names, (["deu"], names, "a language"), "'deu'", "deu_Latn or")


def test_fine_tuning_on_tagged_text(run: RunDirectory, tmp_path: Path) -> None:
    pairs = [(f">>cc<< {a}", b) for a, b in zip(PHRASES[:3], PHRASES[3:], strict=True)]
    pairs += [("the river", "am Fluss"), (">>cc<<", "leer"), ("empty", " ")]
    same: Any = {"num_workers": 1, "vocab_from": run.path, "augment": {}}
    data = kt.prepare(pairs=pairs, output_dir=tmp_path / "data", valid_pairs=pairs[:2], **same)
    ids = run.tokenizer().vocabulary.language_ids
    store = TokenStore(data.directory / "train")
    rows = [[side.ids(np.array([i])).tolist() for side in store.sides] for i in range(len(store))]
    first = {(*source[:2], target[0]) for source, target in rows}
    assert first == {(ids[code], ids["aa"], ids[code]) for code in ("bb", "cc")}
    assert len(rows) == 4 and all(len(target) > 2 for _, target in rows)
    settings: Any = {"init_from": run.path, "max_steps": 2, "batch_tokens": 64}
    tuned = kt.train(data, tmp_path / "tuned", **settings)
    assert tuned.config.model.other_toolkits.forced_language
    [[best]] = tuned.translator().translate([f">>cc<< {BALL}"], return_details=True)
    assert best.details and best.details["tokens"][0] == "▁>>cc<<"
    sampled = {"data": data, "run_dir": tmp_path / "no", "subword_alpha": 0.1, **settings}
    refuses(kt.train, sampled, "subword_alpha")


@pytest.mark.parametrize("flags", [["source", "target"], ["target"]])
def test_data_is_prepared_in_chosen_languages(
    flags: list[str], run: RunDirectory, driver: Driver, tmp_path: Path
) -> None:
    for name, text in (("en", "the river"), ("de", "am Fluss")):
        (tmp_path / name).write_text(f"{text}\n{text}\n")
    codes = {"source": "bb", "target": "cc"}
    languages: Any = {f"{side}_language": codes[side] for side in flags}
    same: Any = {"vocab_from": run.path, "valid_pairs": 1, "num_workers": 1, **languages}
    data = kt.prepare(tmp_path / "en", tmp_path / "de", output_dir=tmp_path / "data", **same)
    assert data.tokenizer.fingerprint == run.tokenizer().fingerprint
    store, ids = TokenStore(data.directory / "train"), data.tokenizer.vocabulary.language_ids
    source, target = (side.ids(np.array([0])).tolist() for side in store.sides)
    assert source[:2] == [ids["cc"], ids["bb" if "source" in flags else "aa"]]
    assert target[0] == ids["cc"]
    # The command gives the same data: it finds them complete.
    given = [f"--{name}={code}" for name, code in languages.items()]
    given += "--source=en --target=de --valid_pairs=1 --output_dir=data".split()
    found = driver.run(tmp_path, "prepare", [*given, f"--vocab_from={run.path}"], "")
    assert found.code == 0 and "already holds" in found.out


def test_languages_of_data_must_be_those_of_a_vocabulary(
    run: RunDirectory, run_directory: RunDirectory, driver: Driver, tmp_path: Path
) -> None:
    same: Any = {"pairs": [("a", "b")] * 2, "output_dir": tmp_path / "data", "valid_pairs": 1}
    for vocabulary, language, facts in (
        (run.path, "ab", ["'ab'", "aa, bb, cc"]),
        (run_directory.path, "aa", ["no languages", run_directory.path]),
        (None, "aa", ["vocab_from", "None"]),
    ):
        given = {**same, "vocab_from": vocabulary, "target_language": language}
        refuses(kt.prepare, given, *facts)
    refuses(kt.prepare, {**given, "vocab_from": run.path, "source_tag": "x"}, "source_tag")
    (tmp_path / "text").write_text("a\nb\n")
    flags = "--source=text --target=text --output_dir=data --target_language=aa".split()
    for more in ([], [f"--vocab_from={run_directory.path}"], ["--source_tag=<2de>"]):
        found = driver.run(tmp_path, "prepare", [*flags, *more], "")
        assert found.code == 1 and tells(found.err, "--target_language", "--vocab_from")
    assert not (tmp_path / "data").exists()


def test_documents_have_the_languages_in_each_sentence(run: RunDirectory) -> None:
    translator, text = kt.load(run.path), "A ball runs. The river stands."
    one, two = translator(["A ball runs.", "The river stands."], target_language="cc")
    tagged = translator(f">>cc<< {text}", document=True)
    assert tagged.split() == f"{one} {two}".split()
    assert translator(text, document=True, target_language="cc") == tagged
    assert translator(text, document=True) != tagged
    tagged = translator(">>cc<< A ball runs.", beam_size=2)
    assert translator("A ball runs.", target_language="cc", beam_size=2) == tagged != one


def test_languages_are_not_words_of_an_alignment() -> None:
    details = {
        "source_tokens": ["▁>>de<<", "▁>>en<<", "▁a", "▁b", "all", "</s>"],
        "tokens": ["▁>>de<<", "▁ein", "▁Ball", "</s>"],
        "alignment": [1, 2, 4, 5],
        "finished": True,
    }
    assert translate.word_alignment(Translation("ein Ball", 0.0, details)) == "0-0 1-1"


def test_commands_choose_languages(driver: Driver, run: RunDirectory, tmp_path: Path) -> None:
    def command(name: str, flags: str, text: str = "") -> CommandResult:
        return driver.run(tmp_path, name, [f"--model_dir={run.path}", *flags.split()], text)

    texts, chosen = [BALL, "the old house"], "--source_language=bb --target_language=cc "
    expected, _ = outputs(translate.with_languages(load_model(run.path), "bb", "cc"), texts)
    for file, lines in (("in.txt", texts), ("ref.txt", expected)):
        (tmp_path / file).write_text("".join(f"{line}\n" for line in lines))
    found = command("translate", f"{chosen} --input=in.txt")
    assert (found.code, found.out.splitlines(), found.err) == (0, expected, "")
    found = command("translate_file", f"{chosen} --input=in.txt --output=out.txt")
    assert found.code == 0
    assert (tmp_path / "out.txt").read_text().split() == " ".join(expected).split()
    found = command("evaluate", f"{chosen} --source=in.txt --reference=ref.txt")
    assert '"exact_match": 1.0' in found.out
    pairs = [f"{a}\t{b}\n" for a, b in zip(texts, expected, strict=True)]
    tagged = "".join(f">>cc<< >>bb<< {pair}" for pair in pairs)
    assert command("score", chosen, "".join(pairs)).out == command("score", "", tagged).out != ""
    warning = command("translate", chosen, f">>aa<< {BALL}\n>>dd<< {BALL}").err
    assert tells(warning, ">>dd<<", "tag") and ">>aa<<" not in warning
    found = command("translate", "--target_language=ab", BALL)
    assert found.code == 1 and "'ab'" in found.err and "aa, bb, cc" in found.err


def test_the_server_chooses_languages(
    driver: Driver, run: RunDirectory, version_of: Callable[[str], Path], tmp_path: Path
) -> None:
    texts, path = [BALL, f">>bb<< {BALL}", "the old house"], version_of("litert")
    original = load_model(run.path)
    own, expected, other = (
        outputs(translate.with_languages(original, *languages), texts)[0]
        for languages in (("cc", "aa"), ("bb", "cc"), ("bb", "aa"))
    )
    with running_server(path, source_language="bb", target_language="cc") as running:
        answers = running.predict({"instances": texts}).json()["predictions"]
        assert [answer["translations"] for answer in answers] == [[text] for text in expected]
        served = kt.load(running.rest)
        assert served(texts) == expected
        assert served(texts, target_language="aa") == other
    with running_server(path) as running:
        assert kt.load(running.rest)(texts) == own
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    chosen = f"--model_dir={path} --source_language=bb --target_language=cc".split()
    files = ["--input=in.txt", "--output_dir=out"]
    assert driver.run(tmp_path, "translate_corpus", [*chosen, *files], "").code == 0
    assert (tmp_path / "out/translations.txt").read_text().splitlines() == expected


def test_attention_is_shown_for_languages(run: RunDirectory) -> None:
    model = open_visible_model(run.path, languages=("bb", "cc"))
    shown = attention(model.signatures["attention"], BALL, "das Haus")
    assert shown.source_tokens[:2] == ["▁>>cc<<", "▁>>bb<<"]
    assert shown.target_tokens[:2] == ["<s>", "▁>>cc<<"]
    assert shown.predicted_tokens[0] == "▁>>cc<<"
    own = attention(model.signatures["attention"], BALL)
    assert own.predicted_tokens[0] == "▁>>cc<<" and own.target_text
    # The encoder does not attend to the language of the target.
    assert not own.encoder[..., 0].any() and not own.cross[..., 0].any()
