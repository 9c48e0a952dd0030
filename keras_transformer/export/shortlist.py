"""Learns the lexical shortlist of a run from its training data."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.data.token_store import TokenStore
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.export.lexicon import learn_lexicon
from keras_transformer.inference.loading import members
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary


def learn_shortlist(
    run: str | Path | RunDirectory, data_dir: str | Path | None, size: int
) -> Shortlist:
    """Learns the candidates of each source token. Progress is shown on a terminal.

    Args:
        run: a run, or several with the same vocabulary, as `export` accepts them.
        data_dir: the prepared data that the run was trained on.
        size: number of frequent tokens, and of translations of each source token.

    Raises:
        InputError: without data, for data with another vocabulary, for data without training pairs
            or with damaged ones, or for an invalid size.

    Example:
    >>> from keras_transformer.data.corpus import parallel_files
    >>> from keras_transformer.data.prepare import PrepareOptions, prepare
    >>> corpora, options = parallel_files(["train.en"], ["train.de"]), PrepareOptions(valid_pairs=1)
    >>> _ = prepare(corpora, "data", options, vocab_from="build/run/tokenizer")
    >>> learn_shortlist("build/run", "data", 8).describe()
    {'frequent': 10, 'translations': 8}
    """
    if data_dir is None:
        raise InputError(
            "A shortlist is learned from the training data. Give its directory with --data_dir."
        )
    data_dir = Path(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    first, _ = members(run)[0]
    if vocabulary.fingerprint != first.tokenizer().fingerprint:
        raise InputError(
            f"{data_dir} and {first.path} have different vocabularies. Give the data that the run "
            "was trained on."
        )
    return Shortlist(*learn_lexicon(TokenStore(data_dir / "train"), vocabulary, size))
