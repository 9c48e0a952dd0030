"""Argos Translate packages: translators for people, also in LibreTranslate.

A version contains one file `translate-en_de.argosmodel` and `manifest.json`. The file is a zip
archive with `metadata.json`, `sentencepiece.model`, a CTranslate2 model in `model/`, and a model
card. Argos Translate 1.11 installs it.

Argos Translate splits a text into sentences, encodes each with the SentencePiece model, translates
it with a beam of 4, and joins the translations. Its search has fixed options: it divides log P by
length^0.2, and writes a word of the source for an unknown token. It downloads its model for
splitting sentences the first time that it needs it.
"""

from __future__ import annotations

import datetime
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.export import Exporter, ExportOptions, ExportResult
from keras_transformer.export.comparison import check_tokens, ids_by_pieces, plain_texts
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.model_card import FormatCard, model_card
from keras_transformer.export.probes import probe_texts
from keras_transformer.extensions.converters.pieces import SPACE
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

with needs_extra("argos", "the format argos"):
    import babel

    from keras_transformer.extensions.ctranslate2 import exporter as ctranslate2

_ARGOS_VERSION = "1.11.0"  # of Argos Translate, for which the package is made
_ABOUT = "This package for Argos Translate and LibreTranslate was made with keras_transformer."
_USE = """\
    argospm install {name}.argosmodel
    argos-translate --from-lang {source} --to-lang {target} "A sentence."
"""


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Writes the next version under `output_dir`.

    The version gets its number only after the package was unpacked and compared with the run, like
    an export for CTranslate2. Its SentencePiece model must give the ids of the run.
    """
    card = options.card
    if card is None or card.languages is None:
        raise InputError(
            "A package of Argos Translate needs the codes of the source and the target language, "
            "as in --languages=en,de."
        )
    source, target = card.languages
    quantization = options.quantization or "none"
    translator = ctranslate2.load_supported(run, settings, quantization)
    _check_target_pieces(translator)
    precision = ctranslate2.precision_name(quantization)
    provenance = Provenance.of(run, translator, precision)
    name = f"translate-{source}_{target}"

    def write(path: Path) -> float:
        path.mkdir()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            (folder / "model").mkdir(parents=True)
            ctranslate2.save_model(translator, quantization, folder / "model")
            model = translator.tokenizer.vocabulary.source_model
            (folder / "sentencepiece.model").write_bytes(model)
            metadata = json.dumps(_metadata(source, target), indent=2, ensure_ascii=False)
            (folder / "metadata.json").write_text(metadata + "\n", encoding="utf-8")
            format_card = FormatCard(
                _ABOUT,
                _USE.format(name=name, source=source, target=target).rstrip(),
                ("transformer", "argos-translate", "ctranslate2"),
                (folder / "model" / "model.bin").stat().st_size,
            )
            text = model_card(name, provenance, card, format_card)
            (folder / "README.md").write_text(text, encoding="utf-8")
            _zip(folder, path / f"{name}.argosmodel")
        write_manifest(path, provenance, signatures={})
        with tempfile.TemporaryDirectory() as temporary:
            with zipfile.ZipFile(path / f"{name}.argosmodel") as package:
                package.extractall(temporary)
            folder = Path(temporary) / name
            _compare_tokens(translator, folder, sentences)
            return ctranslate2.compare(translator, quantization, folder / "model", sentences)

    path, difference = write_version(output_dir, write)
    return ExportResult(path, len(sentences), [], difference)


def _metadata(source: str, target: str) -> dict[str, str]:
    today = datetime.datetime.now(datetime.UTC)
    return {
        # A newer package replaces an older one.
        "package_version": f"{today.year}.{today.month}.{today.day}",
        "argos_version": _ARGOS_VERSION,
        "from_code": source,
        "from_name": _language_name(source),
        "to_code": target,
        "to_name": _language_name(target),
    }


def _language_name(code: str) -> str:
    """Returns the English name of a language, or the code if it is not in the Unicode CLDR."""
    try:
        return babel.Locale.parse(code, sep="-").get_display_name("en") or code
    except (babel.UnknownLocaleError, ValueError):
        return code


def _zip(folder: Path, file: Path) -> None:
    """Writes a folder, with its name, into a zip archive."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for each in sorted(folder.rglob("*")):
            if each.is_file():
                package.write(each, each.relative_to(folder.parent))


def _check_target_pieces(translator: TranslationModule) -> None:
    """Raises `InputError` if the source model decodes a target piece differently.

    Argos Translate has one SentencePiece model, for encoding and for decoding.
    """
    vocabulary = translator.tokenizer.vocabulary
    source, target = (
        sentencepiece.SentencePieceProcessor(model_proto=model)
        for model in (vocabulary.source_model, vocabulary.target_model)
    )
    is_text = vocabulary.target_text_pieces()
    is_text[vocabulary.unknown_id] = False  # replaced by a word of the source

    def decoded(model: Any, piece: str) -> str:
        """Returns the text of Argos Translate; twice, because the first piece is special."""
        return str(model.decode_pieces([piece] * 2)).replace(SPACE, " ").removeprefix(" ")

    for i in range(vocabulary.target_vocab_size):
        piece = target.id_to_piece(i)
        if is_text[i] and decoded(source, piece) != decoded(target, piece):
            raise InputError(
                f"The source vocabulary decodes the target token {piece!r} differently, but Argos "
                "Translate has only one vocabulary. Use a joint vocabulary."
            )


def _compare_tokens(translator: TranslationModule, folder: Path, sentences: Sequence[str]) -> None:
    """Raises `InputError` if the package gives a text other tokens than the run."""
    vocabulary = translator.tokenizer.vocabulary
    pieces, _ = vocabulary.pieces()
    texts = plain_texts(translator, probe_texts(vocabulary, sentences).tokenized)
    found = ids_by_pieces(
        folder / "sentencepiece.model",
        {piece: i for i, piece in enumerate(pieces)},
        texts,
        unknown_id=vocabulary.unknown_id,
        end_id=vocabulary.end_id,
        max_tokens=translator.max_source_tokens,
    )
    check_tokens(translator, texts, found)


class ArgosExporter(Exporter):
    """The format `argos`."""

    options = frozenset({"quantization", "card"})
    export = staticmethod(export)


EXPORTER = ArgosExporter()
