"""The models of a comparison, and the data that they share."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.data.token_store import TokenStore
from keras_transformer.evaluation.test_sets import EvaluationSet


@dataclasses.dataclass(frozen=True)
class StudyModel:
    """One model of a comparison.

    Attributes:
        name: of its folder.
        title: for a person.
        architecture: what its runs call it.
        settings: what differs from the architecture's defaults.
    """

    name: str
    title: str
    architecture: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Material:
    """What the models of a comparison have in common.

    Attributes:
        data_dir: prepared data.
        tests: by name, sentences with one reference each.
        tokenize: of sacreBLEU, as `evaluation.evaluate`'s.
    """

    data_dir: Path
    tests: Mapping[str, EvaluationSet]
    tokenize: str | None = None

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of data, tests and tokenizer."""
        stores = [TokenStore(self.data_dir / part).fingerprint for part in ("train", "valid")]
        tests = {name: [test.sources, test.references] for name, test in self.tests.items()}
        content = json.dumps([stores, tests, self.tokenize], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
