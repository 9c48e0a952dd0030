"""The files in deploy/ match their schemas, the export and each other."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import threading
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from google.protobuf import text_format

from tests import tf_serving
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.34"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "docker-compose.yml").read_text()))


@pytest.fixture(scope="module")
def resources() -> dict[str, dict[str, Any]]:
    """Returns the Kubernetes resources by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {resource["kind"]: resource for resource in documents}


@pytest.fixture(scope="module")
def container(resources: dict[str, Any]) -> dict[str, Any]:
    (only,) = resources["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def by_default(text: str) -> str:
    """Replaces `${NAME:-default}` by the default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def flags_of(arguments: list[str]) -> dict[str, str]:
    return dict(by_default(argument).removeprefix("--").split("=", 1) for argument in arguments)


def test_docker_compose_is_valid(compose: dict[str, Any]) -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(compose)


def test_kubernetes_resources_are_valid(resources: dict[str, Any]) -> None:
    assert set(resources) == {"PersistentVolumeClaim", "ConfigMap", "Deployment", "Service"}
    for resource in resources.values():
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_kubernetes_resources_refer_to_each_other(
    resources: dict[str, Any], container: dict[str, Any]
) -> None:
    deployment, service = (resources[kind]["spec"] for kind in ("Deployment", "Service"))
    pod = deployment["template"]
    labels = pod["metadata"]["labels"].items()
    assert service["selector"].items() <= labels
    assert deployment["selector"]["matchLabels"].items() <= labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == resources["PersistentVolumeClaim"]["metadata"]["name"]
    config = resources["ConfigMap"]
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert config["data"]["monitoring.config"] == (DEPLOY / "monitoring.config").read_text()
    for name in ("startupProbe", "readinessProbe"):
        assert container[name]["httpGet"] == {"path": "/v1/models/export", "port": "rest"}
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert int(container["lifecycle"]["preStop"]["exec"]["command"][1]) < grace


def test_servers_are_the_pinned_one_with_flags_that_it_has(
    compose: dict[str, Any], container: dict[str, Any]
) -> None:
    serving = compose["services"]["serving"]
    for image, arguments in (
        (serving["image"], serving["command"]),
        (container["image"], container["args"]),
    ):
        assert image == f"tensorflow/serving:{tf_serving.VERSION}"
        assert all(argument.startswith("--") for argument in arguments)
        flags = flags_of(arguments)
        assert set(flags) <= tf_serving.FLAGS
        # The model names of the export, below the base path in its models.config.
        assert flags["model_config_file"] == "/models/export/models.config"
        assert flags["batching_parameters_file"] == "/models/export/batching_parameters.txt"
        assert flags["enable_batching"] == flags["enable_per_model_batching_parameters"] == "true"
    for service in compose["services"].values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])  # never :latest
    assert container["resources"]["requests"]["cpu"] == flags["tensorflow_inter_op_parallelism"]


def test_the_model_is_mounted_read_only(compose: dict[str, Any], container: dict[str, Any]) -> None:
    serving = compose["services"]["serving"]
    mounts = {
        by_default(volume["target"]): (by_default(volume["source"]), volume["read_only"])
        for volume in serving["volumes"]
    }
    assert mounts == {
        "/models/export": ("../build/export", True),
        "/etc/serving/monitoring.config": ("./monitoring.config", True),
    }
    flags = flags_of(serving["command"])
    assert flags["monitoring_config_file"] in mounts
    assert {by_default(port) for port in serving["ports"]} == {
        "127.0.0.1:8500:8500", "127.0.0.1:8501:8501",
    }  # fmt: skip
    read_only = {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]}
    assert read_only["/models"] and read_only["/etc/serving"]


def test_prometheus_scrapes_the_address_of_tf_serving(
    compose: dict[str, Any], resources: dict[str, Any]
) -> None:
    monitoring = text_format.Parse(
        (DEPLOY / "monitoring.config").read_text(), tf_serving.MonitoringConfig()
    )
    assert monitoring.prometheus_config.enable
    path = monitoring.prometheus_config.path
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    # Prometheus rejects unknown fields. These fields are from its configuration reference.
    assert set(settings) <= {"global", "scrape_configs", "rule_files", "alerting"}
    assert set(settings["global"]) <= {"scrape_interval", "scrape_timeout", "evaluation_interval"}
    (job,) = settings["scrape_configs"]
    assert set(job) == {"job_name", "metrics_path", "static_configs"}
    assert job["metrics_path"] == path
    ((host, port),) = (target.split(":") for target in job["static_configs"][0]["targets"])
    assert host in compose["services"]
    assert any(entry.endswith(f":{port}")
               for entry in compose["services"][host]["ports"])  # fmt: skip
    annotations = resources["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == path
    assert annotations["prometheus.io/port"] == port


def test_the_health_check_recognizes_a_ready_server(compose: dict[str, Any]) -> None:
    kind, *command = compose["services"]["serving"]["healthcheck"]["test"]
    assert kind == "CMD"

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state = {"export": "AVAILABLE", "other": "LOADING"}.get(self.path.rpartition("/")[2])
            self.send_response(200 if state else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"model_version_status": [{"state": state}]}).encode())

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_port)  # Compose writes $ as $$
        here = [part.replace("$$", "$").replace("8501", port) for part in command]
        codes = [
            subprocess.run(here, env={**os.environ, "MODEL_NAME": model}, timeout=20).returncode
            for model in ("export", "other", "missing")
        ]
        server.shutdown()
    assert codes == [0, 1, 1]
