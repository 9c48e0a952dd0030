# Written by `python -m tests.settings_page`.
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

class SearchOptions(TypedDict, total=False):
    beam_size: int
    length_penalty: float
    length_penalty_formula: Literal["gnmt", "power"]
    n_best: int
    early_stopping: Literal[False, True, "marian"]
    min_length: int
    max_length: int | None
    max_extra_tokens: int | None
    max_source_tokens: int
    repetition_penalty: float
    no_repeat_ngram: int
    banned: str
    unknown: Literal["forbid", "allow", "replace"]
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int

class LoadOptions(SearchOptions, total=False):
    precision: str
    jit_compile: bool
    threads: int | None

class Scoring(TypedDict, total=False):
    tokenize: str | None
    lowercase: bool

class ConvertSettings(TypedDict, total=False):
    positions: Literal["marian", "huggingface"] | None
    source_language: str | None
    target_language: str | None
    config: str | None
    source_sentencepiece: str | None
    target_sentencepiece: str | None
    source_vocabulary: str | None
    target_vocabulary: str | None
    target_space: int
    num_heads: int | None
    normalize_punctuation: str | None
    keep_text: str | None
    keep_languages: str | None

class PrepareSettings(TypedDict, total=False):
    vocab_size: int
    model_type: Literal["unigram", "bpe"]
    byte_fallback: bool
    separate_vocabularies: bool
    character_coverage: float
    normalization: Literal["nfkc_numbers", "nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"]
    vocabulary_lines: int
    symbols: Sequence[str] | None
    max_tokens: int
    seed: int
    max_bytes: int
    max_length_ratio: float | None
    drop_identical: bool
    drop_repetitive: bool
    drop_duplicates: bool
    check_languages: Sequence[str] | None
    on_bad_utf8: Literal["fail", "replace", "drop"]
    source_tag: str | None
    augment: Mapping[str, float]
    num_workers: int | None
    ray: str | None
    source_language: str | None
    target_language: str | None

class TrainSettings(TypedDict, total=False):
    source_vocab_size: int
    target_vocab_size: int
    d_model: int
    tie_embeddings: Literal["all", "target", "none"]
    guided_alignment: Literal["none", "read", "next"]
    pad_id: int
    unknown_id: int
    start_id: int
    end_id: int
    num_encoder_layers: int
    num_decoder_layers: int
    d_ff: int
    num_heads: int
    key_dim: int | None
    value_dim: int | None
    positions: Literal["sinusoidal", "learned"]
    max_positions: int
    attention_window: int | None
    decoder_self_attention: Literal["attention", "ssru"]
    norm_position: Literal["post", "pre"]
    activation: Literal["relu", "gelu", "silu"]
    embedding_dropout: float
    residual_dropout: float
    attention_dropout: float
    activation_dropout: float
    sinusoid_layout: Literal["interleaved", "halves"]
    sinusoid_frequencies: Literal["paper", "tensor2tensor"]
    first_position: int
    mask_source_end: bool
    forced_language: bool
    embedding_norm: bool
    scale_embeddings: bool
    decoder_d_ff: int | None
    decoder_num_heads: int | None
    attention_bias: bool
    output_bias: bool
    final_norm: bool | None
    layer_norm_epsilon: float
    beam_size: int
    length_penalty: float
    length_penalty_formula: Literal["gnmt", "power"]
    n_best: int
    early_stopping: int
    min_length: int
    max_length: int | None
    max_extra_tokens: int | None
    max_source_tokens: int
    repetition_penalty: float
    no_repeat_ngram: int
    banned: str
    unknown: Literal["forbid", "allow", "replace"]
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_steps: int
    batch_tokens: int
    batch_shapes: int
    subword_alpha: float | None
    num_microbatches: int
    label_smoothing: float
    auxiliary_loss_weight: float
    schedule: Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"]
    learning_rate: float
    warmup_steps: int
    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    freeze: str
    ema_decay: float
    mixed_precision: Literal["auto", "float32", "bfloat16", "float16"]
    jit_compile: Literal["auto", "true", "false"]
    deterministic: bool
    checkpoint_steps: int
    keep_checkpoints: int
    keep_best: int
    best_metric: Literal["loss", "bleu"]
    bleu_steps: int
    bleu_sentences: int
    log_steps: int
    mix: str | None
    mix_temperature: float | None
    device: str
    logical_cpus: int | None
    max_minutes: float | None
    decoding__early_stopping: Literal[False, True, "marian"]
    decoding__seed: int
