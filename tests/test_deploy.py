"""The image and the manifests are what their tools take, fit together, and name settings that there are."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import kubernetes_validate
import pytest
import yaml

from support.serving import serving
from tailrace.server import Settings, create_app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs/deploy"
COMPOSE = sorted(DEPLOY.glob("*/compose.yaml"))
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


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.parent.name)
def test_a_compose_file_is_what_compose_takes_and_fits_together(path: Path) -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    subprocess.run([sys.executable, "-m", "check_jsonschema", *schema, str(path)], check=True)
    document = yaml.safe_load(path.read_text())
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= document["services"].keys()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (path.parent / source).is_file()
    [server] = [
        service
        for service in document["services"].values()
        if "TAILRACE_MODEL" in service.get("environment", ())
    ]
    assert server["environment"].keys() <= SETTINGS
    assert int(server["stop_grace_period"].removesuffix("s")) >= 10 + int(
        server["environment"]["TAILRACE_SHUTDOWN_GRACE"]
    )


def test_the_balancer_finds_the_nodes() -> None:
    balancer = (DEPLOY / "cluster/haproxy.cfg").read_text()
    assert "server-template node 20 node:8000" in balancer
    assert services()["node"]["command"][-2:] == ["--port", "8000"]


def commands_of_valkey() -> Iterator[list[str]]:
    yield services()["valkey"]["command"]
    yield container(named("StatefulSet", "tailrace-valkey"))["args"]


def test_valkey_writes_what_it_has_answered_and_throws_nothing_away() -> None:
    for command in commands_of_valkey():
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--appendonly"] == "yes"
        assert options["--appendfsync"] == "always"
        assert options["--maxmemory-policy"] == "noeviction"


class Stage:
    """A stage of the Dockerfile: its instructions, from its FROM on."""

    def __init__(self, text: str) -> None:
        lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
        self.instructions = [line.split(maxsplit=1) for line in lines if line]

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def one(self, name: str) -> str:
        [rest] = self.all(name)
        return rest

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for line in self.all("ENV") for pair in line.split())


DOCKERFILE = ROOT / "Dockerfile"
_, BUILDING, RUNNING = [
    Stage(text) for text in re.split(r"^(?=FROM )", DOCKERFILE.read_text(), flags=re.MULTILINE)
]


def test_the_image_has_no_fault_that_a_linter_knows() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run([hadolint, "--no-color", DOCKERFILE], check=True)


def test_the_image_is_built_of_what_the_wheel_needs_and_of_nothing_else() -> None:
    sources = {source for line in BUILDING.all("COPY") for source in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sources == {
        "pyproject.toml",
        "uv.lock",
        "hatch_build.py",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *(package.split("/")[0] for package in wheel["packages"]),
    }
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_runs_as_nobody_in_particular_and_keeps_its_tasks_in_its_volume() -> None:
    settings = {name: value for name, value in RUNNING.environment.items() if name.startswith("TAILRACE_")}
    assert settings.keys() <= SETTINGS
    user, volume = RUNNING.one("USER"), RUNNING.one("VOLUME")
    assert int(user) > 0
    assert f"--uid {user} --home-dir {volume} " in RUNNING.one("RUN")
    assert settings["TAILRACE_STORE"] == f"sqlite:///{volume}/tailrace.db"
    assert settings["TAILRACE_PORT"] == RUNNING.one("EXPOSE") == "8000"
    folder = BUILDING.environment["UV_PROJECT_ENVIRONMENT"]
    assert RUNNING.one("COPY") == f"--from=build {folder} {folder}"
    assert RUNNING.environment["PATH"].startswith(f"{folder}/bin:")
    assert BUILDING.one("FROM").removesuffix(" AS build") == RUNNING.one("FROM")
    command = json.loads(RUNNING.one("CMD"))
    assert command == container(named("Deployment", "tailrace"))["args"]
    server = yaml.safe_load((DEPLOY / "single/compose.yaml").read_text())["services"]["server"]
    assert (DEPLOY / "single" / server["build"] / "Dockerfile").samefile(DOCKERFILE)
    assert [mount.split(":")[1] for mount in server["volumes"]] == [volume]


async def test_the_image_says_how_its_server_is() -> None:
    command = json.loads(RUNNING.one("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"

    async def check(port: str) -> int:
        # A proxy has nothing to do with it.
        environment = {**os.environ, "TAILRACE_PORT": port, "http_proxy": "http://127.0.0.1:9"}
        return (
            await anyio.run_process([sys.executable, *command[1:]], env=environment, check=False)
        ).returncode

    async with serving(create_app(Settings(model="ollama:x", store="sqlite://"))) as url:
        assert await check(url.rpartition(":")[2]) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    assert await check(port) == 1
