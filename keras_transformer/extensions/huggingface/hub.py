"""Models on the Hugging Face Hub: `hf://USER/NAME`, optionally with `@REVISION`.

Downloads are in the cache of `huggingface_hub` (`HF_HOME`), which other programs share. A file
appears there when it is complete, and an incomplete model is never used. Without a connection, a
complete model in the cache is used.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from keras_transformer.errors import InputError, needs_extra

_PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
# Files that no model needs here: weights for other libraries, logs, and the state of training.
_NOT_LOADED = ["*.h5", "*.msgpack", "*.onnx", "*.ot", "tensorboard/*", "*/state.npz"]


def resolve(models: str, source_format: str | None = None) -> str:
    """Downloads the models with addresses, and returns the paths, separated by commas again."""
    if _PREFIX not in models:
        return models
    return ",".join(
        str(download(model, source_format)) if model.startswith(_PREFIX) else model
        for model in models.split(",")
    )


def download(address: str, source_format: str | None = None) -> Path:
    """Downloads a model and returns its directory.

    Only files that are not in the cache are downloaded, and no weights for other libraries.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise InputError(
            f"{address} is not an address on the Hub. It must be hf://USER/NAME, or "
            "hf://USER/NAME@REVISION."
        )
    with needs_extra("huggingface", "the Hugging Face Hub"):
        import huggingface_hub
    snapshot = functools.partial(
        huggingface_hub.snapshot_download,
        parts["name"],
        revision=parts["revision"],
        library_name="keras_transformer",
    )
    try:
        path = Path(snapshot(ignore_patterns=["*.bin", *_NOT_LOADED]))
        may_need_bin = (path / "source.spm").is_file() or source_format in ("fsmt", "huggingface")
        if may_need_bin and not any(path.glob("*.safetensors")):
            snapshot(ignore_patterns=_NOT_LOADED)  # old models have only pytorch_model.bin
        return path
    except Exception as error:  # the library raises exceptions of several other libraries
        raise InputError(f"{address} cannot be downloaded: {_reason(error)}.") from error


def upload(path: Path, name: str) -> str:
    """Uploads the files of a directory as one commit, and returns the address of the web page.

    A model that does not exist is created, and is public. Files of the model that are not in the
    directory stay.
    """
    if not _ADDRESS.fullmatch(f"{_PREFIX}{name}") or "@" in name:
        raise InputError(f"{name!r} is not the name of a model on the Hub. It must be USER/NAME.")
    with needs_extra("huggingface", "the Hugging Face Hub"):
        import huggingface_hub

    api = huggingface_hub.HfApi(library_name="keras_transformer")
    try:
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=path, commit_message="Upload a model of keras_transformer"
        )
    except Exception as error:  # the library raises exceptions of several other libraries
        raise InputError(
            f"{path} is complete, but cannot be uploaded to {name}: {_reason(error)}."
        ) from error
    return str(address)


def _reason(error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # the Hub and the cache lack it
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return "it does not exist, or you have no access. Check the name, or run: hf auth login"
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
