"""CTranslate2, from what `export/ctranslate2.py` wrote."""

from __future__ import annotations

from starters import protocol


def load(settings: protocol.Settings) -> protocol.Translate:
    """Returns what translates a text: SentencePiece around the engine."""
    import ctranslate2
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{settings['path']}/joint.model")
    translator = ctranslate2.Translator(
        settings["path"],
        device="cpu",
        compute_type=settings["precision"],
        inter_threads=1,
        intra_threads=settings["threads"],
    )

    def translate(sentence: str) -> str:
        source = pieces.id_to_piece(pieces.encode(sentence))
        [result] = translator.translate_batch(
            [source],
            beam_size=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            min_decoding_length=settings["steps"],
            max_decoding_length=settings["steps"],
        )
        text: str = pieces.decode(result.hypotheses[0])
        return text

    return translate


if __name__ == "__main__":
    protocol.start(["ctranslate2", "sentencepiece"], load)
