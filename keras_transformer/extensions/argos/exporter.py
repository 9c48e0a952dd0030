"""Argos Translate packages: translators for people, also in LibreTranslate.

A version contains one file `translate-en_de.argosmodel`, a model card and `manifest.json`. The file
is a zip archive with `metadata.json`, `sentencepiece.model` and a CTranslate2 model in `model/`.
Argos Translate 1.11 installs it.

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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentencepiece

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.export import ExportOptions, VersionFacts
from keras_transformer.export.probes import plain_texts

with needs_extra("argos", "the format argos"):
    import babel

    from keras_transformer.extensions.ctranslate2.engine import CTranslate2Engine
    from keras_transformer.extensions.ctranslate2.exporter import CTranslate2Exporter, save_model

if TYPE_CHECKING:  # imported late: a package is opened without TensorFlow
    from keras_transformer.inference.translation_module import TranslationModule

_ARGOS_VERSION = "1.11.0"  # the package is made for this version of Argos Translate
_ABOUT = "This package for Argos Translate and LibreTranslate was made with keras_transformer."
_USE = """\
    argospm install {name}.argosmodel
    argos-translate --from-lang {source} --to-lang {target} "A sentence."
"""


class ArgosExporter(CTranslate2Exporter):
    """Writes a package, which is compared like an export for CTranslate2."""

    kind = "a package for Argos Translate"
    options = frozenset()
    has_card = True

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        _languages(options)
        if translator.tokenizer.has_languages:
            raise InputError(
                "Argos Translate cannot begin a translation with its language, as this model does. "
                "Use the format ctranslate2."
            )
        check_target_pieces(translator)
        return super().prepare(translator, options)

    def probes(self, translator: TranslationModule, sentences: Sequence[str]) -> list[str]:
        return plain_texts(translator, super().probes(translator, sentences))

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        source, target = _languages(options)
        name = f"translate-{source}_{target}"
        today = datetime.datetime.now(datetime.UTC)
        metadata = {
            # A newer package replaces an older one.
            "package_version": f"{today.year}.{today.month}.{today.day}",
            "argos_version": _ARGOS_VERSION,
            "from_code": source,
            "from_name": _language_name(source),
            "to_code": target,
            "to_name": _language_name(target),
        }
        with (
            tempfile.TemporaryDirectory() as model,
            zipfile.ZipFile(folder / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package,
        ):
            save_model(translator, self.weights_of(options), Path(model))
            text = json.dumps(metadata, indent=2, ensure_ascii=False)
            package.writestr(f"{name}/metadata.json", text + "\n")
            vocabulary = translator.tokenizer.vocabulary
            package.writestr(f"{name}/sentencepiece.model", vocabulary.source_model)
            for file in sorted(Path(model).iterdir()):
                package.write(file, f"{name}/model/{file.name}")

    def engine(self, folder: Path, **options: Any) -> CTranslate2Engine:
        (package,) = folder.glob("*.argosmodel")
        with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(package) as archive:
            archive.extractall(unpacked)
            files = Path(unpacked) / package.stem
            engine = CTranslate2Engine(files / "model", files / "sentencepiece.model", **options)
        engine.label, engine.keeps_unknown = str(folder), True
        return engine

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        source, target = _languages(options)
        (package,) = folder.glob("*.argosmodel")
        use = _USE.format(name=package.stem, source=source, target=target).rstrip()
        tags = ("transformer", "argos-translate", "ctranslate2")
        return VersionFacts(_ABOUT, use, tags)


EXPORTER = ArgosExporter()


def _languages(options: ExportOptions) -> tuple[str, str]:
    if options.languages is None:
        raise InputError(
            "A package of Argos Translate needs the codes of the source and the target language, "
            "as in languages=en,de."
        )
    return options.languages


def _language_name(code: str) -> str:
    """Returns the English name of a language, or the code if it is not in the Unicode CLDR."""
    try:
        return babel.Locale.parse(code, sep="-").get_display_name("en") or code
    except (babel.UnknownLocaleError, ValueError):
        return code


def check_target_pieces(translator: TranslationModule) -> None:
    """Raises `InputError` if the source model decodes a target piece differently.

    Argos Translate has one SentencePiece model, for encoding and for decoding.
    """
    vocabulary = translator.tokenizer.vocabulary
    source, target = (
        sentencepiece.SentencePieceProcessor(model_proto=model)
        for model in (vocabulary.source_model, vocabulary.target_model)
    )
    is_text = vocabulary.target_text_pieces
    is_text[vocabulary.unknown_id] = False  # a word of the source replaces it

    def decoded(model: Any, piece: str) -> str:
        """Returns the text of Argos Translate; twice, because the first piece is special."""
        return str(model.decode_pieces([piece] * 2)).replace("\u2581", " ").removeprefix(" ")

    for i in range(vocabulary.target_vocab_size):
        piece = target.id_to_piece(i)
        if is_text[i] and decoded(source, piece) != decoded(target, piece):
            raise InputError(
                f"The source vocabulary decodes the target token {piece!r} differently, but Argos "
                "Translate has only one vocabulary. Use a joint vocabulary."
            )
