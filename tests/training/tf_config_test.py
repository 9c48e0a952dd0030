"""TF_CONFIG as it is read: workers in order, and one sentence for what it does not say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.training.multi_worker import read_tf_config
from tests.messages import mentions

WORKERS = ["a:2222", "b:2222"]


def tf_config(workers: Any, index: Any, job: str = "worker", **others: Any) -> str:
    cluster = {"worker": workers, **others}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def test_the_first_worker_is_the_chief() -> None:
    assert read_tf_config(tf_config(WORKERS, 0)) == (WORKERS, 0)
    assert read_tf_config(tf_config(WORKERS, 1)) == (WORKERS, 1)


def test_a_chief_of_its_own_comes_before_the_workers() -> None:
    all_of_them = ["c:1", *WORKERS]
    assert read_tf_config(tf_config(WORKERS, 0, "chief", chief=["c:1"])) == (all_of_them, 0)
    assert read_tf_config(tf_config(WORKERS, 1, chief=["c:1"])) == (all_of_them, 2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{cluster", mentions("TF_CONFIG", "JSON", "'{cluster")),
        ("[" * 100_000, mentions("TF_CONFIG", "JSON")),
        ("[1]", mentions("TF_CONFIG", "[1]")),
        ('{"task": {"type": "worker", "index": 0}}', mentions("cluster", "None")),
        ('{"cluster": {"chief": ["a:1"]}}', mentions("cluster", "{'chief'")),
        ('{"cluster": {"worker": ["a:1"]}}', mentions("task", "None")),
        (tf_config(WORKERS, 0, ps=["c:1"]), mentions("'ps'", "cluster")),
        (tf_config({"0": "a:1"}, 0), mentions("worker", "{'0': 'a:1'}")),
        (tf_config(["a"], 0), mentions("worker", "'a'", "host:port")),
        (tf_config([":1"], 0), mentions("worker", "':1'")),
        (tf_config(["a:0"], 0), mentions("worker", "'a:0'")),
        (tf_config(["a:65536"], 0), mentions("worker", "'a:65536'")),
        (tf_config(["a:" + "1" * 5000], 0), mentions("worker") + "(?=.*'a:1111)"),
        (tf_config([1], 0), mentions("worker", "1")),
        (tf_config(["a:1", "b:1", "a:1"], 0), mentions("a:1", "twice")),
        (tf_config(["b:1"], 0, chief=["a:1", "c:1"]), mentions("2 chiefs")),
        (tf_config(WORKERS, 0, "evaluator"), mentions("task type", "evaluator")),
        (tf_config(WORKERS, 0, "chief"), mentions("index 0", "0", "chief")),
        (tf_config(WORKERS, 2), mentions("index 2", "2", "worker")),
        (tf_config(WORKERS, -1), mentions("index -1")),
        (tf_config(WORKERS, "0"), mentions("index '0'")),
        (tf_config(WORKERS, None), mentions("index None")),
    ],
)
def test_a_bad_tf_config_is_told_in_a_sentence(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named) as error:
        read_tf_config(text)
    assert "TF_CONFIG" in str(error.value)
    assert '{"cluster": {"worker": ["host:port", ...]}' in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*WORKERS, "worker", "chief"]),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.sampled_from("cluster task worker chief type index".split()), each)
    ),
)


@given(JSON.map(json.dumps) | st.text())
def test_any_tf_config_is_read_or_is_an_input_error(text: str) -> None:
    try:
        workers, index = read_tf_config(text)
    except InputError:
        return
    assert 0 <= index < len(workers)
