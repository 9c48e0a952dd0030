"""Commands whose files are in an object store: fsspec's memory, and a stub of S3."""

import contextlib
import os
import socket
import subprocess
import sys

import fsspec
import pytest

from keras_transformer.extensions.ray import storage
from keras_transformer.inference import loading
from tests.builders import PHRASES, tiny_data, tiny_run
from tests.data.corpora import tree
from tests.extensions.serving.running_server import wait_until
from tests.messages import tells


@contextlib.contextmanager
def stub_of_s3(monkeypatch):
    """Starts a server with S3's interface on this machine, with a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "moto.server", f"--port={port}"])
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of another stub
        fsspec.filesystem("s3").mkdir("bucket")
        yield
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.long)])
def folder(request, monkeypatch, tmp_path):
    """The address of a folder in a store, and its file system."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            reason = "needs s3fs and moto[server], which the weekly run of the tests installs"
            pytest.importorskip("s3fs", reason=reason)
            pytest.importorskip("moto", reason=reason)
            stack.enter_context(stub_of_s3(monkeypatch))
        files = fsspec.filesystem(request.param)
        files.pipe("bucket/a/mono.en", "".join(f"{phrase}\n" for phrase in PHRASES).encode())
        yield f"{request.param}://bucket/a", files
        files.rm("bucket/a", recursive=True)


def test_a_text_in_a_store_is_translated_there(folder, cpu_version, driver, tmp_path):
    address, files = folder
    files.put(str(cpu_version), "bucket/a/en-de", recursive=True)
    flags = f"--model_dir={address}/en-de --input={address}/mono.en --output_dir={address}/out"
    ended = driver.run(tmp_path, "translate_corpus", flags.split(), "")
    assert ended.code == 0 and f"Uploading {address}/out. " in ended.err, ended.err
    here = f"--model_dir={cpu_version} --input={address}/mono.en --output_dir=here".split()
    assert driver.run(tmp_path, "translate_corpus", here, "").code == 0
    files.get("bucket/a/out", str(tmp_path / "there"), recursive=True)
    assert sorted(os.listdir(tmp_path / "there")) == ["report.json", "translations.txt"]
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
    again = driver.run(tmp_path, "translate_corpus", flags.split(), "")
    assert again.code == 1 and tells(again.err, f"{address}/out", "exists")


def test_weights_of_a_run_in_a_store_have_a_path_like_their_address(folder):
    address, files = folder
    files.put(str(tiny_run()), "bucket/a/run", recursive=True)
    [(run, name), (last, _)] = loading.members(f"{address}/run@best,{address}/run")
    assert name == "best" and str(run.path).endswith("/bucket/a/run") and last.path == run.path


@pytest.mark.parametrize("folder", ["memory"], indirect=True)
def test_a_copy_of_another_process_is_not_replaced(folder, monkeypatch):
    address, files = folder
    get, copies = type(files).get, []

    def get_at_the_same_time(self, *arguments, **options):
        monkeypatch.setattr(type(files), "get", get)
        copies.append(os.stat(storage.copy(address)).st_ino)
        get(self, *arguments, **options)

    monkeypatch.setattr(type(files), "get", get_at_the_same_time)
    assert [os.stat(storage.copy(address)).st_ino] == copies


def test_data_are_prepared_in_a_store_and_read_from_there(folder, driver, tmp_path):
    address, files = folder
    flags = f"--source={address}/mono.en --target={address}/mono.en --vocab_size=90 --valid_pairs=1"
    for output in (f"{address}/data", "data"):
        ended = driver.run(tmp_path, "prepare", [*flags.split(), f"--output_dir={output}"], "")
        assert ended.code == 0, ended.err
    files.get("bucket/a/data", str(tmp_path / "there"), recursive=True)
    assert tree(tmp_path / "there") == tree(tmp_path / "data")
    files.put(str(tiny_data()), "bucket/a/tiny", recursive=True)
    flags = f"--data_dir={address}/tiny --run_dir=run --preset=tiny --max_steps=1 --batch_tokens=64"
    assert driver.run(tmp_path, "train", [*flags.split(), "--jit_compile=false"], "").code == 0


def test_an_upload_that_failed_is_repeated_by_the_same_command(
    cpu_version, driver, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files, address = fsspec.filesystem("memory"), "memory://repeated"
    (tmp_path / "mono.en").write_text("".join(f"{phrase}\n" for phrase in PHRASES))
    flags = f"--model_dir={cpu_version} --input=mono.en --output_dir={address}/out".split()

    def put_half(self, path, name, recursive):
        files.pipe("/repeated/out/report.json", b"half of a report")
        raise ConnectionError("reset")

    with monkeypatch.context() as patch:
        patch.setattr(type(files), "put", put_half)
        ended = driver.run(tmp_path, "translate_corpus", flags, "")
    assert ended.code == 1 and f"{address}/out: reset\n" in ended.err
    assert driver.run(tmp_path, "translate_corpus", flags, "").code == 0
    names = files.find("/repeated")
    assert names == ["/repeated/out/report.json", "/repeated/out/translations.txt"]
    assert files.cat(names[0]) != b"half of a report"
    assert driver.run(tmp_path, "translate_corpus", flags, "").code == 1  # it exists


@pytest.mark.parametrize("address", ["memory://bucket/absent", "absent://bucket/a"])
def test_a_missing_file_or_package_is_an_error_with_the_address(address, driver, tmp_path):
    flags = f"--source={address} --target={address} --output_dir=out".split()
    ended = driver.run(tmp_path, "prepare", flags, "")
    assert ended.code == 1 and tells(ended.err, "error:", address)
    assert ended.err.count("\n") == 1 and not os.listdir(tmp_path)
