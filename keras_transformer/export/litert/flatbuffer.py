"""A LiteRT model as objects: read, looked at, changed, written."""

from __future__ import annotations

from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_NAMES = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
_DTYPES = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
_IDENTIFIER = b"TFL3"


class Op(NamedTuple):
    """An operation of a model: one of the runtime's own, or a custom one by its name."""

    name: str
    custom: bool


def read(content: bytes) -> Any:
    """Returns the `schema.ModelT` of a file's content."""
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def write(model: Any) -> bytes:
    """Returns the file's content of a `schema.ModelT`."""
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def ops_by_signature(model: Any) -> dict[str, set[Op]]:
    """Returns the operations that each signature uses, in its loops and branches too."""
    return {
        signature.signatureKey.decode(): {
            op_of(model, operator)
            for index in _reached(model, signature.subgraphIndex)
            for operator in model.subgraphs[index].operators
        }
        for signature in model.signatureDefs
    }


def describe_signatures(model: Any) -> dict[str, Any]:
    """Returns inputs and outputs of each signature, `{"dtype": "string", "shape": [1]}` by name.

    A dimension that varies is None.
    """

    def described(graph: Any, tensors: Any) -> dict[str, Any]:
        found = {each.name.decode(): graph.tensors[each.tensorIndex] for each in tensors}
        return {
            name: {
                "dtype": _DTYPES[found[name].type].lower(),
                "shape": [None if size < 0 else size for size in shape_of(found[name])],
            }
            for name in sorted(found)
        }

    return {
        signature.signatureKey.decode(): {
            "inputs": described(model.subgraphs[signature.subgraphIndex], signature.inputs),
            "outputs": described(model.subgraphs[signature.subgraphIndex], signature.outputs),
        }
        for signature in model.signatureDefs
    }


def shape_of(tensor: Any) -> list[int]:
    """Returns the shape, -1 where a dimension is not known before the model runs."""
    known = tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature
    return [] if known is None else [int(size) for size in known]


def op_of(model: Any, operator: Any) -> Op:
    """Returns what an operation of a subgraph is."""
    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode:
        return Op(code.customCode.decode(), True)
    return Op(_NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)], False)


def _reached(model: Any, first: int) -> list[int]:
    """Returns the subgraphs that one needs, itself among them."""
    found, todo = [], [first]
    while todo:
        index = todo.pop()
        if index in found:
            continue
        found.append(index)
        for operator in model.subgraphs[index].operators:
            todo += [getattr(operator.builtinOptions, name) for name in subgraphs_of(operator)]
    return found


def subgraphs_of(operator: Any) -> list[str]:
    """Returns the names of the options that are numbers of subgraphs."""
    options = vars(operator.builtinOptions) if operator.builtinOptions else {}
    return [name for name in options if name.endswith("SubgraphIndex")]


def code_of(model: Any, builtin: int, version: int = 1) -> int:
    """Returns the index of the code of a `schema.BuiltinOperator`, added where there is none.

    Its version becomes `version` where it was lower: a runtime that does not have it then
    refuses the model, and does not compute something else.
    """
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin:
            code.version = max(code.version, version)
            return index
    added = schema.OperatorCodeT()
    added.builtinCode = added.deprecatedBuiltinCode = builtin
    added.version = version
    model.operatorCodes.append(added)
    return len(model.operatorCodes) - 1


def add_tensor(graph: Any, name: str, dtype: int, shape: list[int], buffer: int = 0) -> int:
    """Adds a tensor to a subgraph and returns its index; a size of -1 is not known yet."""
    added = schema.TensorT()
    # By its number, too: tools take names to be unique.
    added.name = f"{graph.name.decode()}/{name}_{len(graph.tensors)}".encode()
    added.type, added.buffer, added.hasRank = dtype, buffer, True
    added.shape = np.array([max(size, 1) for size in shape], np.int32)
    if -1 in shape:
        added.shapeSignature = np.array(shape, np.int32)
    graph.tensors.append(added)
    return len(graph.tensors) - 1


def make_operator(code: int, inputs: list[int], output: int) -> Any:
    """Returns an operation by the index of its code, which is in no subgraph yet."""
    made = schema.OperatorT()
    made.opcodeIndex = code
    made.inputs = np.array(inputs, np.int32)
    made.outputs = np.array([output], np.int32)
    return made
