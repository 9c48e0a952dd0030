"""SavedModel exports: they translate like the run, and failures publish nothing."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, export
from keras_transformer.export.saved_model import exporter as saved_model
from keras_transformer.inference import loading, translate
from keras_transformer.layers import masks
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses, weekly
from tests.conftest import PHRASES
from tests.export.model_variants import make_run
from tests.messages import mentions, tells

SENTENCES = [*PHRASES, "", "ball " * 30]
WINDOW = {"model__attention_window": 5}


@pytest.fixture(scope="module")
def exported(exported_run):
    return exported_run / "1"


@pytest.fixture(scope="module")
def loaded(exported):
    return loading.load_model(exported)


@pytest.fixture(scope="module")
def of_run(run_directory):
    """The model that was exported."""
    return loading.load_model(run_directory.path, {"decoding.n_best": "2"})


def assert_same(translator, model, atol=1e-5):
    own = translator.translate(tf.constant(SENTENCES))
    other = model.translate(text=tf.constant(SENTENCES))
    np.testing.assert_array_equal(other["translations"], own["translations"])
    np.testing.assert_allclose(other["scores"], own["scores"], atol=atol)


@pytest.mark.parametrize(
    ("name", "changes", "precision"),
    [
        weekly("separate", {"model__decoder_self_attention": "ssru"}, "float32"),
        weekly("separate", {}, "bfloat16"),
        weekly("converted", WINDOW, "float32"),
    ],
)
def test_other_architectures_and_precisions(tmp_path, monkeypatch, name, changes, precision):
    monkeypatch.setattr(masks, "_MIN_BLOCK_SIZE", 4)  # makes several blocks with a window
    run = make_run(tmp_path / "run", name, **changes)
    translator = loading.load_translator(run, precision=precision)
    saved_model.EXPORTER.write(translator, tmp_path / "1", ExportOptions())
    model = loading.load_model(tmp_path / "1")
    assert_same(translator, model, atol=1e-5 if precision == "float32" else 1e-4)
    assert model.vocabulary.models() == translator.tokenizer.vocabulary.models()
    dtypes = {weight.dtype.name for weight in model.loaded.weights if weight.shape.rank > 1}
    assert dtypes == {precision}


@pytest.mark.parametrize("wrong", ["", "serving_default", "translate", "translate_ids"])
def test_every_signature_must_give_the_scores_of_the_run(of_run, wrong):
    translator = of_run.module
    scores = translator.translate_to_ids(tf.constant(PHRASES)).scores.numpy()

    def call(calls):
        return [{"scores": scores - 0.01 * (name == wrong)} for name, _ in calls]

    refused = pytest.raises(InputError, match=mentions(wrong, "scores")) if wrong else None
    with refused or contextlib.nullcontext():
        engine = SimpleNamespace(call=call)
        saved_model.EXPORTER.compare_signatures(translator, engine, PHRASES)


def test_qualities_are_compared_where_the_lengths_are_equal():
    scores, own = np.zeros((1, 2)), {"lengths": tf.constant([[2, 3]])}
    own |= {"quality": tf.constant([[0.5, 0.4]])}
    translator = SimpleNamespace(
        config=SimpleNamespace(length_penalty=0.6),
        quality=True,
        translate_to_ids=lambda _: SimpleNamespace(scores=tf.constant(scores)),
        translate_verbose=lambda *_: own,
    )
    found = {"scores": scores, "quality": np.array([[0.5, 0.9]])}
    engine = SimpleNamespace(call=lambda calls: [found for _ in calls])
    found["lengths"] = np.array([[2, 4]])
    saved_model.EXPORTER.compare_signatures(translator, engine, ["x"])
    found["lengths"] = np.array([[2, 3]])
    refuses(saved_model.EXPORTER.compare_signatures, (translator, engine, ["x"]), "quality")


def test_details_equal_those_of_the_run(of_run, loaded):
    lines, prefixes = SENTENCES[:4], ["", "ein", "", "das"]
    ours, theirs = (
        translate.translate_verbose(model, lines, prefixes, attention=True)
        for model in (of_run, loaded)
    )
    for own, other in zip(ours, theirs, strict=True):
        assert own["source_tokens"] == other["source_tokens"]
        assert len(own["translations"]) == len(other["translations"]) == 2
        for one, same in zip(own["translations"], other["translations"], strict=True):
            assert one.keys() == same.keys()
            for name, value in one.items():
                if name in ("text", "tokens", "ids", "finished", "alignment"):
                    assert value == same[name]
                else:
                    np.testing.assert_allclose(value, same[name], atol=2e-4)


@pytest.mark.long
def test_an_ensemble_is_one_saved_model(run_directory, tmp_path):
    run = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))
    report = {"train": {"source": {"max_length": 25}}}
    (run.path / "data_report.json").write_text(json.dumps(report))
    members = f"{run.path}@step-00000100,{run.path}@step-00000300"
    path = export(members, tmp_path / "export", SENTENCES).path
    ensemble, exported = loading.load_model(members), loading.load_model(path)
    assert exported.max_train_source_length == ensemble.max_train_source_length == 25
    _, warnings, _ = translate.translate_to_text(exported, ["ball " * 16])
    assert any(tells(warning, "longest source", "25") for warning in warnings)
    together, theirs, alone = (
        [best for best, *_ in translate.translate_lines(model, SENTENCES)]
        for model in (ensemble, exported, loading.load_model(run.path))
    )
    assert [best.text for best in theirs] == [best.text for best in together]
    assert [best.text for best in theirs] != [best.text for best in alone]
    scores = [[best.score for best in found] for found in (theirs, together)]
    np.testing.assert_allclose(*scores, atol=1e-4)

    inside = [weight.numpy() for weight in exported.loaded.weights]
    both = [run.named_weights(name) for name in ("step-00000100", "step-00000300")]
    assert len(inside) == sum(map(len, both))
    for weight in (weight for member in both for weight in member.values()):
        assert any(np.array_equal(weight, constant) for constant in inside)


@pytest.mark.long
def test_int8_matrices_are_constants_that_are_stored_once(run_directory, tmp_path):
    translator = loading.load_translator(run_directory.path, precision="int8")
    saved_model.EXPORTER.write(translator, tmp_path / "1", ExportOptions())
    model = loading.load_model(tmp_path / "1")
    assert_same(translator, model)
    [table] = [weight for weight in model.loaded.weights if weight.shape.rank > 1]
    assert table.dtype == tf.int8
    content = (tmp_path / "1" / "saved_model.pb").read_bytes()
    [graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    shapes = [
        tf.TensorShape(node.attr["value"].tensor.tensor_shape).as_list()
        for function in graph.graph_def.library.function
        for node in function.node_def
        if node.op == "Const" and node.attr["dtype"].type == tf.qint8.as_datatype_enum
    ]
    weights = run_directory.named_weights("last")
    matrices = [value for path, value in weights.items() if path.endswith("kernel")]
    matrices.append(weights["embedding/embeddings"].T)
    assert sorted(shapes) == sorted(list(matrix.shape) for matrix in matrices)


# The nodes of a function: name, operation, inputs, device. The first letter of the name of a
# constant is its value.
NODES = [
    ("a", "Const", "", ""),
    ("a1", "Const", "", ""),  # equal to `a`, with a name that begins with `a`
    ("a2", "Const", "^write", ""),  # equal, but with a control input
    ("a3", "Const", "", "/GPU:0"),  # equal, but on another device
    ("b", "Const", "", ""),
    ("b1", "Const", "", ""),
    ("write", "AssignVariableOp", "variable a1:output:0 ^b1", ""),
    ("sum", "AddN", "a:output:0 a1:output:0 a2:output:0 a3:output:0", ""),
]


def test_pruning_merges_equal_constants(tmp_path):
    proto, file = saved_model_pb2.SavedModel(), tmp_path / "saved_model.pb"
    function = proto.meta_graphs.add().graph_def.library.function.add()
    for name, op, inputs, device in NODES:
        node = function.node_def.add(name=name, op=op, input=inputs.split(), device=device)
        if op == "Const":
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(ord(name[0])))
    function.ret.update(total="sum:sum:0", constant="b1:output:0")
    file.write_bytes(proto.SerializeToString())
    saved_model.prune(tmp_path)
    [graph] = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
    [pruned] = graph.graph_def.library.function
    assert {node.name: " ".join(node.input) for node in pruned.node_def} == {
        "a": "",
        "a2": "^write",
        "a3": "",
        "b": "",
        "write": "variable a:output:0 ^b",
        "sum": "a:output:0 a:output:0 a2:output:0 a3:output:0",
    }
    assert dict(pruned.ret) == {"total": "sum:sum:0", "constant": "b:output:0"}
