"""The files in deploy/ match their schemas, the export and each other."""

import asyncio
import configparser
import dataclasses
import http.server
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from unittest import mock

import jsonschema
import kubernetes_validate
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from keras_transformer.extensions.gateway import Settings as GatewaySettings
from keras_transformer.extensions.serving import Settings, server
from tests import tf_serving
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.34"


COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
SERVING = COMPOSE["services"]["serving"]
GATEWAY = yaml.safe_load((DEPLOY / "server" / "docker-compose.yml").read_text())
RESOURCES = {
    resource["kind"]: resource
    for resource in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
}
POD = RESOURCES["Deployment"]["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]


def by_default(text: str) -> str:
    """Replaces `${NAME:-default}` by the default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def flags_of(arguments: list[str]) -> dict[str, str]:
    return dict(by_default(argument).removeprefix("--").split("=", 1) for argument in arguments)


def test_files_are_valid() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    jsonschema.validators.validator_for(schema)(schema).validate(COMPOSE)
    jsonschema.validators.validator_for(schema)(schema).validate(GATEWAY)
    assert set(RESOURCES) == {"PersistentVolumeClaim", "ConfigMap", "Deployment", "Service"}
    for resource in RESOURCES.values():
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_the_gateway_has_flags_that_exist_and_more_memory_than_its_models() -> None:
    service = GATEWAY["services"]["gateway"]
    flags = flags_of(service["command"])
    assert {*flags} - {"models_dir"} <= {
        field.name for field in dataclasses.fields(GatewaySettings)
    }
    assert int(flags["memory_mb"]) < 1024 * int(by_default(service["mem_limit"]).rstrip("g"))
    assert int(flags["grace_seconds"]) + 3 < int(service["stop_grace_period"].rstrip("s"))


def test_kubernetes_resources_refer_to_each_other() -> None:
    deployment, service = (RESOURCES[kind]["spec"] for kind in ("Deployment", "Service"))
    labels = POD["metadata"]["labels"].items()
    assert service["selector"].items() <= labels
    assert deployment["selector"]["matchLabels"].items() <= labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == set(volumes)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == RESOURCES["PersistentVolumeClaim"]["metadata"]["name"]
    config = RESOURCES["ConfigMap"]
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert config["data"]["monitoring.config"] == (DEPLOY / "monitoring.config").read_text()
    for name in ("startupProbe", "readinessProbe"):
        assert CONTAINER[name]["httpGet"] == {"path": "/v1/models/export", "port": "rest"}
    grace = POD["spec"]["terminationGracePeriodSeconds"]
    assert int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1]) < grace


def test_servers_are_the_pinned_one_with_flags_that_it_has() -> None:
    for image, arguments in (
        (SERVING["image"], SERVING["command"]),
        (CONTAINER["image"], CONTAINER["args"]),
    ):
        assert image == f"tensorflow/serving:{tf_serving.VERSION}"
        assert all(argument.startswith("--") for argument in arguments)
        flags = flags_of(arguments)
        assert set(flags) <= tf_serving.FLAGS
        # The model names of the export, below the base path in its models.config.
        assert flags["model_config_file"] == "/models/export/models.config"
        assert flags["batching_parameters_file"] == "/models/export/batching_parameters.txt"
        assert flags["enable_batching"] == flags["enable_per_model_batching_parameters"] == "true"
    for service in COMPOSE["services"].values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])  # never :latest
    assert CONTAINER["resources"]["requests"]["cpu"] == flags["tensorflow_inter_op_parallelism"]


def test_the_model_is_mounted_read_only() -> None:
    mounts = {by_default(volume["target"]): volume for volume in SERVING["volumes"]}
    assert all(volume["read_only"] is True for volume in mounts.values())
    sources = {name: by_default(volume["source"]) for name, volume in mounts.items()}
    config = {"/etc/serving/monitoring.config": "./monitoring.config"}
    assert sources == {"/models/export": "../build/export", **config}
    flags = flags_of(SERVING["command"])
    assert flags["monitoring_config_file"] in mounts
    assert {by_default(port) for port in SERVING["ports"]} == {
        "127.0.0.1:8500:8500", "127.0.0.1:8501:8501",
    }  # fmt: skip
    read_only = {mount["mountPath"]: mount.get("readOnly") for mount in CONTAINER["volumeMounts"]}
    assert read_only["/models"] and read_only["/etc/serving"]


def test_prometheus_scrapes_the_address_of_tf_serving() -> None:
    form = r'^prometheus_config \{\n  enable: true\n  path: "(.+)"\n\}$'  # of MonitoringConfig
    [path] = re.findall(form, (DEPLOY / "monitoring.config").read_text(), re.MULTILINE)
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    # Prometheus rejects unknown fields. These fields are from its configuration reference.
    assert set(settings) <= {"global", "scrape_configs", "rule_files", "alerting"}
    assert set(settings["global"]) <= {"scrape_interval", "scrape_timeout", "evaluation_interval"}
    (job,) = settings["scrape_configs"]
    assert set(job) == {"job_name", "metrics_path", "static_configs"}
    assert job["metrics_path"] == path
    ((host, port),) = (target.split(":") for target in job["static_configs"][0]["targets"])
    assert host in COMPOSE["services"]
    assert any(entry.endswith(f":{port}") for entry in COMPOSE["services"][host]["ports"])
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == path
    assert annotations["prometheus.io/port"] == port


def test_the_health_check_recognizes_a_ready_server() -> None:
    kind, *command = SERVING["healthcheck"]["test"]
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


def test_our_own_server_has_limits_and_time_to_stop() -> None:
    resources = list(yaml.safe_load_all((DEPLOY / "server/kubernetes.yaml").read_text()))
    for resource in resources:
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    spec = resources[0]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert POD["spec"]["volumes"][0] in spec["volumes"]  # the same claim
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / "server/keras-transformer.service")
    limits, kubernetes = unit["Service"], flags_of(container["args"])
    systemd = flags_of(limits["ExecStart"].split()[2:])
    assert {*systemd, *kubernetes} <= {field.name for field in dataclasses.fields(Settings)}
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    for flags, seconds, cores in (
        (systemd, float(limits["TimeoutStopSec"]), f"{int(limits['CPUQuota'][:-1]) // 100}"),
        (kubernetes, spec["terminationGracePeriodSeconds"] - pause,
         container["resources"]["requests"]["cpu"]),
    ):  # fmt: skip
        assert seconds > float(flags["grace_seconds"]) + server._LAST_SECONDS
        assert flags["batches_at_once"] == cores
    assert limits["MemoryMax"] and limits["TasksMax"] and container["resources"]["limits"]["memory"]
    for service in COMPOSE["services"].values():  # as SECURITY.md says
        assert {"mem_limit", "pids_limit", "logging", "restart"} <= service.keys()


def test_the_kserve_example_answers_probes_while_it_translates() -> None:
    modules = {name: mock.MagicMock() for name in ("kserve", "tensorflow", "tensorflow_text")}
    modules["kserve"].Model = mock.MagicMock
    with mock.patch.dict(sys.modules, modules):
        translator = runpy.run_path(str(DEPLOY / "kserve/server.py"))["Translator"]("export", "")
    probe = threading.Event()
    translator._predict = lambda payload: probe.wait(20)

    async def main() -> bool:
        asyncio.get_running_loop().call_later(0.05, probe.set)
        return bool(await translator.predict({}))

    assert asyncio.run(main())
