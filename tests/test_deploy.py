"""The manifests in docs/deploy are what their tools take, fit together, and name settings that there are."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tailrace.server import Settings

DEPLOY = Path(__file__).parents[1] / "docs/deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SETTINGS = {f"TAILRACE_{name.upper()}" for name in Settings.model_fields}


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in documents() if document["kind"] == kind]


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [document for document in of_kind(kind) if document["metadata"]["name"] == name]
    return found


def workloads() -> list[dict[str, Any]]:
    return of_kind("Deployment") + of_kind("StatefulSet")


def container(workload: dict[str, Any]) -> dict[str, Any]:
    [found] = workload["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_what_kubernetes_takes(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_what_selects_pods_finds_some() -> None:
    labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in workloads()]
    for workload in workloads():
        selector = workload["spec"]["selector"]["matchLabels"]
        assert sum(selector.items() <= each.items() for each in labels) == 1
    for service in of_kind("Service"):
        selector = service["spec"]["selector"]
        [chosen] = [
            each
            for each in workloads()
            if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        ports = {port["name"] for port in container(chosen)["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in of_kind("PodDisruptionBudget"):
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= each.items() for each in labels)


def test_names_lead_to_what_they_name() -> None:
    for scaler in of_kind("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (
            "replicas" not in named(target["kind"], target["name"])["spec"]
        )  # else each overwrites the other
    for ingress in of_kind("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                ports = {port["name"] for port in named("Service", service["name"])["spec"]["ports"]}
                assert service["port"]["name"] in ports
    for workload in workloads():
        for source in container(workload).get("envFrom", ()):
            for kind, reference in source.items():
                assert named({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], reference["name"])
    services = {service["metadata"]["name"] for service in of_kind("Service")}
    secret = named("Secret", "tailrace")["stringData"]
    hosts = re.findall(r"(?:@|redis://)([a-z-]+)", secret["TAILRACE_STORE"] + secret["TAILRACE_EVENTS"])
    assert set(hosts) == {"tailrace-postgres", "tailrace-valkey"} <= services


def test_nodes_are_given_settings_that_there_are() -> None:
    values = {
        **named("ConfigMap", "tailrace")["data"],
        **named("Secret", "tailrace")["stringData"],
    }
    assert values.keys() <= SETTINGS
    settings = Settings(**{name.removeprefix("TAILRACE_").lower(): value for name, value in values.items()})
    assert settings.events
    pod = named("Deployment", "tailrace")["spec"]["template"]["spec"]
    [node] = pod["containers"]
    assert node["ports"][0]["containerPort"] == settings.port
    pause = node["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + settings.shutdown_grace + 10


def services() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "cluster/compose.yaml").read_text())["services"]


def test_the_compose_file_fits_together() -> None:
    document = yaml.safe_load((DEPLOY / "cluster/compose.yaml").read_text())
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= document["services"].keys()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (DEPLOY / "cluster" / source).is_file()
    node = document["services"]["node"]
    assert node["environment"].keys() <= SETTINGS
    assert int(node["stop_grace_period"].removesuffix("s")) >= 10 + int(
        node["environment"]["TAILRACE_SHUTDOWN_GRACE"]
    )
    balancer = (DEPLOY / "cluster/haproxy.cfg").read_text()
    assert "server-template node 20 node:8000" in balancer
    assert node["command"][-2:] == ["--port", "8000"]


def commands_of_valkey() -> Iterator[list[str]]:
    yield services()["valkey"]["command"]
    yield container(named("StatefulSet", "tailrace-valkey"))["args"]


def test_valkey_writes_what_it_has_answered_and_throws_nothing_away() -> None:
    for command in commands_of_valkey():
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--appendonly"] == "yes"
        assert options["--appendfsync"] == "always"
        assert options["--maxmemory-policy"] == "noeviction"
