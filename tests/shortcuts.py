"""Leaves out, from its import on, what takes longer than the small graphs of tests.

TensorFlow optimizes no graphs: running them once is faster. It records one stack for all their
operations, since those of pytest are deep. It looks for uses of variables only among operations
with handles as inputs. Programs that tests start may use this, too.
"""

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.util import tf_stack  # has no public way to turn this off

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
stack = tf_stack.extract_stack()
tf_stack.extract_stack = lambda stacklevel=1: stack
find_resources, handles = auto_control_deps._get_resource_inputs, (tf.resource, tf.variant)
auto_control_deps._get_resource_inputs = lambda operation: (
    find_resources(operation) if any(t.dtype in handles for t in operation.inputs) else ()
)
