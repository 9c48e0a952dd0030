"""Reads, inspects and writes LiteRT models as objects of `ai_edge_litert.schema_py_generated`."""

from __future__ import annotations

from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

_NAMES = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
BUILTIN_OPS = frozenset(_NAMES.values())
_DTYPES = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
_IDENTIFIER = b"TFL3"


def read(content: bytes) -> Any:
    """Parses the content of a file to a `schema.ModelT`.

    Example:
    >>> import tensorflow as tf
    >>> double = tf.function(lambda x: x + x, input_signature=[tf.TensorSpec([None, 2])])
    >>> functions = [double.get_concrete_function()]
    >>> model = read(tf.lite.TFLiteConverter.from_concrete_functions(functions).convert())
    >>> [op_name(model, operator) for operator in model.subgraphs[0].operators]
    ['ADD']
    >>> shape_of(model.subgraphs[0].tensors[0]), describe_signatures(model)
    ([-1, 2], {})
    """
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def write(model: Any) -> bytes:
    """Serializes a `schema.ModelT` to the content of a file.

    Example:
    >>> read(write(schema.ModelT())).version
    0
    """
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def ops_by_signature(model: Any) -> dict[str, set[str]]:
    """Returns the names of the operations of each signature, with its loops and branches.

    Example:
    >>> model = schema.ModelT()
    >>> model.signatureDefs = []
    >>> ops_by_signature(model)
    {}
    """
    result = {}
    for signature in model.signatureDefs:
        reached, todo = set(), [signature.subgraphIndex]
        while todo:
            index = todo.pop()
            if index not in reached:
                reached.add(index)
                for operator in model.subgraphs[index].operators:
                    names = subgraph_options(operator)
                    todo += [getattr(operator.builtinOptions, name) for name in names]
        result[signature.signatureKey.decode()] = {
            op_name(model, operator)
            for index in reached
            for operator in model.subgraphs[index].operators
        }
    return result


def describe_signatures(model: Any) -> dict[str, Any]:
    """Returns JSON values for each signature, `{"translate": {"inputs": ..., "outputs": ...}}`.

    An input or output is described as `{"text": {"dtype": "string", "shape": [1]}}`. None is a
    dimension that varies.

    Example:
    >>> model = schema.ModelT()
    >>> model.signatureDefs = []
    >>> describe_signatures(model)
    {}
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
    """Returns the shape of a tensor, with -1 for dimensions that vary.

    Example:
    >>> tensor = schema.TensorT()
    >>> tensor.shape, tensor.shapeSignature = [1, 3], [-1, 3]
    >>> shape_of(tensor)
    [-1, 3]
    """
    known = tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature
    return [] if known is None else [int(size) for size in known]


def op_name(model: Any, operator: Any) -> str:
    """Returns the name of a built-in or custom operation of a subgraph.

    Example:
    >>> model, operator = schema.ModelT(), schema.OperatorT()
    >>> model.operatorCodes = []
    >>> operator.opcodeIndex = code_of(model, schema.BuiltinOperator.GATHER)
    >>> op_name(model, operator)
    'GATHER'
    """
    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode:
        return str(code.customCode.decode())
    return _NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]


def subgraph_options(operator: Any) -> list[str]:
    """Returns the names of an operation's options that are indices of subgraphs.

    Example:
    >>> loop = schema.OperatorT()
    >>> loop.builtinOptions = schema.WhileOptionsT()
    >>> subgraph_options(loop)
    ['condSubgraphIndex', 'bodySubgraphIndex']
    """
    options = vars(operator.builtinOptions) if operator.builtinOptions else {}
    return [name for name in options if name.endswith("SubgraphIndex")]


def code_of(model: Any, builtin: int, version: int = 1) -> int:
    """Returns the index of a built-in operation's code, and adds the code if it is missing.

    The code gets at least the given version. Runtimes that lack this version then refuse the
    model instead of computing something else.

    Args:
        model: a `schema.ModelT`.
        builtin: a value of `schema.BuiltinOperator`.
        version: the required version of the operation.

    Example:
    >>> model = schema.ModelT()
    >>> model.operatorCodes = []
    >>> code_of(model, schema.BuiltinOperator.GATHER, version=2)
    0
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
