"""Translation sets of TFDS: found by name, and prepared on disk.

To import this module loads TFDS, and registers Multi30k. The phrasebook, which needs an extra,
is registered when it is asked for.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import tensorflow_datasets as tfds

from keras_transformer.data.corpora import multi30k  # noqa: F401  (to import it is to register it)
from keras_transformer.errors import InputError

_EXAMPLE = "expected a name such as wmt14_translate/de-en"
# "huggingface:opus_books": looking such a set up already goes to the network.
_NAMESPACE = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]")
# What TFDS calls the directory of a part of OPUS that has no name of its own.
_OPUS_PART = re.compile(r"opus/([A-Za-z_]+)-([A-Za-z_]+) for (.+)")


def find(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a set: of TFDS's, of ours, or of one prepared in `data_dir`.

    Raises:
        InputError: for a set or a part of one that does not exist, and for a set of
            several parts none of which is named.
    """
    if _NAMESPACE.match(name):
        raise InputError(
            f"{name!r} is a community data set; expected one that TFDS itself has, such as"
            " wmt14_translate/de-en"
        )
    if re.split("[/:]", name)[0] == "phrasebook":
        import keras_transformer.data.corpora.phrasebook.tfds_builder  # noqa: F401  registers it
    part = _OPUS_PART.fullmatch(name)
    named = (
        {"name": "opus", "config": _opus_config(name, *part.groups())} if part else {"name": name}
    )
    try:
        builder = tfds.builder(**named, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        there = f", and none is prepared in {data_dir}" if data_dir else ""
        raise InputError(
            f"TFDS has no data set {name!r}{there}; {_EXAMPLE}, or translate_folder:DIR"
        ) from error
    except Exception as error:  # malformed, no such part or version, a damaged dataset_info.json
        raise InputError(
            f"TFDS cannot use the data set {name!r} ({reason(error)}); {_parts(name)}"
        ) from error
    if "/" not in name and len(builder.builder_configs) > 1:
        raise InputError(f"{name} has several parts; {_parts(name)}")
    return builder


def text_keys(builder: Any) -> list[str]:
    """Returns under which keys an example of the set has texts: its languages."""
    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def needs_no_download(builder: Any) -> bool:
    """Returns whether the set is made from what is installed."""
    return bool(builder.name == "phrasebook")


def prepare(name: str, builder: Any, data_dir: str | None) -> Any:
    """Downloads and writes the set where it is not on disk yet, and returns its builder.

    Raises:
        InputError: for whatever keeps TFDS from it: no network, no room, a file that
            must be fetched by hand.
    """
    if builder.data_path.exists():
        return builder
    try:
        builder.download_and_prepare()
        return builder
    except Exception as error:
        another = find(name, data_dir)
        if another.data_path.exists():  # by another process in the meantime
            return another
        raise InputError(
            f"{name} cannot be prepared in {builder.data_dir} ({reason(error)}); expected a set"
            " that can be downloaded, and a directory with room for it"
        ) from error


def reason(error: Exception) -> str:
    """Returns what TFDS complains of, in one sentence; its messages can go on for pages."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Failed to construct dataset .*?\}\": |\{\{.*?\}\} ?", "", text)
    return text.split(". ")[0][:300].rstrip(".") or type(error).__name__


def _opus_config(name: str, source: str, target: str, subsets: str) -> Any:
    from tensorflow_datasets.datasets.opus import opus_dataset_builder as opus

    pair = tuple(sorted((source, target)))
    subset_names = re.split(r",\s*", subsets)
    for subset in subset_names:
        known = opus.DATASET_MAP.get(subset)
        if known is None:
            raise InputError(
                f"{name}: TFDS has no {subset!r} of OPUS; expected some of"
                f" {', '.join(sorted(opus.DATASET_MAP))}"
            )
        if pair not in known.language_pairs:  # TFDS would leave it out without a word
            languages = sorted(set(itertools.chain(*known.language_pairs)))
            raise InputError(
                f"{name}: {subset} has no pair {'-'.join(pair)}; expected two of"
                f" {', '.join(languages)}"
            )
    return opus.OpusConfig(version="0.1.0", language_pair=pair, subsets=subset_names)


def _parts(name: str) -> str:
    """Returns what was expected in place of `name`: the parts that the set has."""
    set_name = re.split("[/:]", name)[0]
    try:
        parts = list(tfds.builder_cls(set_name).builder_configs)
    except Exception:  # no such set
        return _EXAMPLE
    if not parts:
        return f"expected {set_name}"
    if set_name == "opus":
        parts.append("en-fr for EMEA, KDE4")
    return f"expected one of {[f'{set_name}/{part}' for part in parts]}"
