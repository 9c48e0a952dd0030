"""TensorFlow loaded without what its native code says on every machine without a GPU."""

from __future__ import annotations

import os
import tempfile


def load_tensorflow() -> None:
    """Loads TensorFlow and looks for devices, with the native log of both kept off the screen.

    On a machine without a GPU it says three times that there is none, before
    any log level counts. What it said is shown where loading fails.
    """
    with tempfile.TemporaryFile() as said:
        screen = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            said.seek(0)
            os.write(screen, said.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
