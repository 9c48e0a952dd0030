"""Runs of tiny models with random weights, for all variants of the configuration."""

import numpy as np

from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS, Transformer
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.model_proto import CONTROL, ModelProto, append_symbols
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import PHRASES, tiny_config

SEARCH_OPTIONS = {
    "decoding.no_repeat_ngram": 2,
    "decoding.repetition_penalty": 1.3,
    "decoding.banned": "Hund|rote Ball",
    "decoding.min_length": 3,
    "decoding.early_stopping": "marian",
}
MODELS = {
    "paper": {},
    # Everything in which models of other toolkits differ from the paper.
    "converted": {
        "model__norm_position": "pre",
        "model__embedding_norm": True,
        "model__decoder_d_ff": 24,
        "model__decoder_num_heads": 4,
        "model__tie_embeddings": "none",
        "model__scale_embeddings": False,
        "model__sinusoid_layout": "halves",
        "model__sinusoid_frequencies": "tensor2tensor",
        "model__first_position": 2,
        "model__mask_source_end": True,
        "model__layer_norm_epsilon": 0.1,
        "decoding__length_penalty": 1.0,
        "decoding__length_penalty_formula": "power",
        "decoding__early_stopping": "marian",
        "model__activation": "gelu",
        "model__attention_bias": True,
        "model__output_bias": True,
    },
    "separate": {
        "model__tie_embeddings": "target",
        "model__output_bias": True,
        "model__positions": "learned",
        "model__max_positions": 20,
        "model__activation": "silu",
        "model__key_dim": 5,
        "model__value_dim": 5,
        "model__num_encoder_layers": 2,
        "model__final_norm": True,
    },
    "languages": {
        "model__forced_language": True,
        "model__norm_position": "pre",
        "model__tie_embeddings": "none",
        "model__first_position": 2,
        "model__output_bias": True,
        "decoding__length_penalty": 1.0,
        "decoding__length_penalty_formula": "power",
    },
    "no_final_norm": {"model__norm_position": "pre", "model__final_norm": False},
}


def with_languages(model, codes=("aa", "bb", "cc")):
    """Adds languages to a SentencePiece model. The first two are the default source and target."""
    source = append_symbols(model, [f"\u2581>>{code}<<" for code in codes])
    target = ModelProto.FromString(source)
    for piece in target.pieces[-len(codes) :]:
        piece.type = CONTROL
    return Vocabulary(source, target.SerializeToString()).with_languages(*codes[:2])


def make_run(path, name="paper", tokenizer=None, **changes):
    """A run of a tiny model with random weights. None of them is zero or one."""
    phrases = [phrase.encode() for phrase in PHRASES]
    if tokenizer is None and name == "separate":
        tokenizer = Tokenizer(learn_vocabulary(phrases[:3], 40), learn_vocabulary(phrases[3:], 50))
    elif name == "languages":
        tokenizer = Tokenizer(*with_languages(learn_vocabulary(phrases, 60)).models().values())
    elif tokenizer is None:
        tokenizer = Tokenizer(learn_vocabulary(phrases, 60))
    sizes = {
        "model__source_vocab_size": tokenizer.source_vocab_size,
        "model__target_vocab_size": tokenizer.target_vocab_size,
    }
    config = tiny_config(**{**sizes, **MODELS[name], **changes})
    run = RunDirectory.create(path, config, tokenizer, "fingerprint")
    model = Transformer(run.config.model, dtype="float32")
    model.build()
    random = np.random.default_rng(1)
    weights = {
        path: random.normal(0, 0.3, variable.shape).astype(np.float32)
        for path, variable in model.weights_by_path().items()
    }
    if name == "languages":  # CTranslate2 does not exclude special tokens.
        weights["output_projection/bias"][:3] = EXCLUDED_TOKEN_BIAS
    if name == "converted":  # Outputs end before their limits, where early stopping matters.
        weights["output_projection/bias"][tokenizer.end_id] += 1.9
    run.save_checkpoint(100, weights, {}, {})
    return run
