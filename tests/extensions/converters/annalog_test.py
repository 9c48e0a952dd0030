"""ANNalog, a real trained model: tokens, scores, search, and the loss of int8 in exports.

It is a Transformer with learned positions that writes variants of molecules, as lines of SMILES
(annalog 1.0.6, MIT). `tests/fixtures/make.py` recorded its results. The weights are in the package:

    pip install --no-deps annalog==1.0.6
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import Config
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.converters import source, write_run
from keras_transformer.extensions.converters.torch_files import read_torch_file
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.text.model_proto import CONTROL, NORMAL, UNKNOWN, ModelProto
from keras_transformer.text.vocabulary import SPECIAL_PIECES, Vocabulary
from tests.conftest import ROOT

PACKAGE = importlib.util.find_spec("annalog")
if PACKAGE is None or PACKAGE.origin is None:
    reason = "the weights are missing: pip install --no-deps annalog==1.0.6"
    pytest.skip(reason, allow_module_level=True)

WEIGHTS = Path(PACKAGE.origin).parent / "ckpt_and_vocab" / "Lev_extended.pt"
RESULTS: dict[str, Any] = json.loads((ROOT / "tests/fixtures/annalog.json").read_text("utf-8"))
NUM_LAYERS, SPACE = 3, "\u2581"


def sentencepiece_model(tokens: list[str], *, is_source: bool) -> bytes:
    """Splits SMILES into tokens, the longest first, because all have the same score.

    A source begins with a start token, for which the mark of a space stands here: SentencePiece
    puts it before each text.
    """
    pad, unknown, start, end = SPECIAL_PIECES
    special = {"<unk>": unknown, "<pad>": pad, "<sos>": start, "<eos>": end}
    proto = ModelProto()
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = is_source
    for token in tokens:
        kind = CONTROL if token in special else NORMAL
        kind = UNKNOWN if token == "<unk>" else kind
        proto.pieces.add(piece=special.get(token, token), type=kind, score=-1.0)
    if is_source:
        proto.pieces.add(piece=SPACE, type=NORMAL, score=-1.0)
    spec = proto.trainer_spec
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    spec.unk_id, spec.pad_id, spec.bos_id, spec.eos_id = map(tokens.index, special)
    return bytes(proto.SerializeToString(deterministic=True))


def read() -> source.ConvertedModel:
    tokens = RESULTS["vocabulary"]
    found = source.SourceWeights(read_torch_file(WEIGHTS), "Lev_extended.pt")
    table: source.WeightTable = {"output_projection/bias": ("decoder.fc_out.bias",)}
    names = {"self_attention": "self", "cross_attention": "encoder"}
    for stack, (_, sublayers) in source.STACKS.items():
        for i in range(NUM_LAYERS):
            ours, theirs = f"{stack}/layer_{i}", f"{stack}.layers.{i}"
            for sublayer in sublayers:
                name = f"{theirs}.{names[sublayer]}_attention.fc_"
                table |= source.attention(f"{ours}/{sublayer}", [f"{name}{p}.{{}}" for p in "qkvo"])
                norm = f"{theirs}.{names[sublayer].removesuffix('oder')}_attn_layer_norm.{{}}"
                table |= source.layer_norm(f"{ours}/{sublayer}_norm", norm)
            inner, outer = (f"{theirs}.positionwise_feedforward.fc_{n}.{{}}" for n in (1, 2))
            table |= source.feed_forward(f"{ours}/feed_forward", inner, outer)
            table |= source.layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.ff_layer_norm.{{}}")
    embeddings = found.take("encoder.tok_embedding.weight")
    start = embeddings[tokens.index("<sos>")]
    weights = {
        "source_embedding/embeddings": np.concatenate([embeddings, start[None]]),
        "target_embedding/embeddings": found.take("decoder.tok_embedding.weight"),
        "output_projection/kernel": found.take("decoder.fc_out.weight").T,
        "source_positions/embeddings": found.take("encoder.pos_embedding.weight"),
        "target_positions/embeddings": found.take("decoder.pos_embedding.weight"),
    }
    weights |= found.read_rest(table, transpose=True)
    models = [sentencepiece_model(tokens, is_source=side) for side in (True, False)]
    config = Config().replace(
        model__d_model=256,
        model__num_encoder_layers=NUM_LAYERS,
        model__num_decoder_layers=NUM_LAYERS,
        model__d_ff=512,
        model__num_heads=8,
        model__layer_norm_epsilon=1e-5,
        model__positions="learned",
        model__max_positions=102,
        model__attention_bias=True,
        model__output_bias=True,
        model__tie_embeddings="none",
        decoding__length_penalty=0.0,
        decoding__max_length=101,
        decoding__max_source_tokens=102,
    )
    return source.make_model(config, weights, Vocabulary(*models))


@pytest.fixture(scope="module")
def model() -> source.ConvertedModel:
    return read()


def test_ids_are_those_of_the_package(model: source.ConvertedModel) -> None:
    start = model.vocabulary.start_id
    sources = model.vocabulary.encode_source([line.encode() for line in RESULTS["sources"]])
    targets = model.vocabulary.encode_target([line.encode() for line in RESULTS["sources"]])
    assert [[start, *ids] for ids in targets] == RESULTS["ids"]
    added = model.vocabulary.source_vocab_size - 1
    assert [[start, *ids[1:]] for ids in sources] == RESULTS["ids"]
    assert {ids[0] for ids in sources} == {added}


def test_log_probabilities_are_those_of_the_package(model: source.ConvertedModel) -> None:
    module = TranslationModule([model.transformer()], model.tokenizer(), model.config.decoding)
    sources, targets = zip(*RESULTS["pairs"], strict=True)
    ids = module.tokenizer.tokenize_target(tf.constant(targets))
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    scorer = Scorer(module)
    scores = scorer.score_ids(tf.constant(sources), ids.to_tensor(module.tokenizer.pad_id), lengths)
    np.testing.assert_allclose(scores["log_probs"], RESULTS["log_probs"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_those_of_the_package(model: source.ConvertedModel, beam: int) -> None:
    decoding = model.config.replace(decoding__beam_size=beam).decoding
    module = TranslationModule([model.transformer()], model.tokenizer(), decoding)
    found = module.search(tf.constant(RESULTS["sources"]))
    texts = [text.decode() for text in module.texts(found)[:, 0].numpy()]
    expected = [best[0] for best in RESULTS["n_best"][str(beam)]]
    assert texts == [text for text, _ in expected]
    scores = [score for _, score in expected]
    np.testing.assert_allclose(found.scores[:, 0], scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("format", "changes", "least_equal"),
    [
        ("saved_model", {}, 24),
        ("saved_model", {"weights": "int8"}, 21),
        ("litert", {}, 24),
        ("litert", {"weights": "float16"}, 24),
        ("litert", {"weights": "int8"}, 15),
    ],
)
def test_exports_translate_like_the_run(
    model: source.ConvertedModel,
    tmp_path: Path,
    format: str,
    changes: dict[str, str],
    least_equal: int,
) -> None:
    if format == "litert":
        pytest.importorskip("ai_edge_litert")
    write_run(model, tmp_path / "run")
    # The translations of the run itself, so BLEU is the agreement with them.
    references = [best[0][0] for best in RESULTS["n_best"]["4"]]
    options = ExportOptions(
        references=references,
        tokenize="char",
        # The number of equal outputs is the measure here; BLEU of 24 short lines is none.
        max_bleu_loss=10 if changes else None,
        **changes,
    )
    result = export(
        tmp_path / "run", tmp_path / "export", RESULTS["sources"], options, format=format
    )
    assert len(result.translations) == len(references) == 24 and not result.ties
    assert result.scores is not None
    assert round(result.scores.exact_match * len(references)) >= least_equal
