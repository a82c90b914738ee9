"""The image and the manifests are valid for their tools, consistent, and use existing settings."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import kubernetes_validate
import pytest
import yaml
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from support.live_server import serving
from support.postgres import PostgresServer
from support.rpc import Rpc, message
from support.valkey import running_valkey
from tailrace.server import Settings, create_app
from tailrace.server.runtime.handlers import FunctionHandler, Turn
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message
from tailrace.wrappers import ConfigurationError

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


def test_every_pod_is_selected_by_a_policy_and_nothing_is_allowed_by_default() -> None:
    policies = [each["spec"] for each in of_kind("NetworkPolicy")]
    [closed] = [each for each in policies if each["podSelector"] == {}]
    assert set(closed["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in closed
    assert "egress" not in closed
    for workload in workloads():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        [own] = [
            each
            for each in policies
            if each["podSelector"] and each["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        assert set(own["policyTypes"]) == {"Ingress", "Egress"}
        ports = {port["containerPort"] for port in container(workload)["ports"]}
        assert [port["port"] for rule in own["ingress"] for port in rule["ports"]] == list(ports)
        assert all(rule["from"] for rule in own["ingress"])  # none for all callers


def test_the_broker_and_the_database_are_reached_by_nodes_alone() -> None:
    node = named("Deployment", "tailrace")["spec"]["template"]["metadata"]["labels"]
    for name in ("tailrace-valkey", "tailrace-postgres"):
        policy = named("NetworkPolicy", name)["spec"]
        assert policy["ingress"] == [
            {"from": [{"podSelector": {"matchLabels": node}}], "ports": policy["ingress"][0]["ports"]}
        ]
        assert "egress" not in policy
        assert any(
            {"podSelector": policy["podSelector"]} in rule["to"]
            for rule in named("NetworkPolicy", "tailrace")["spec"]["egress"]
        )


def test_no_container_has_more_rights_than_it_needs() -> None:
    for workload in workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        given = container(workload)["securityContext"]
        assert given == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    for path in COMPOSE:
        for service in yaml.safe_load(path.read_text())["services"].values():
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]


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
        )  # otherwise each overwrites the other
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
    hosts = re.findall(r"@([a-z-]+)", secret["TAILRACE_STORE"] + secret["TAILRACE_EVENTS"])
    assert set(hosts) == {"tailrace-postgres", "tailrace-valkey"} <= services


def test_nodes_are_given_settings_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        **named("ConfigMap", "tailrace")["data"],
        **named("Secret", "tailrace")["stringData"],
    }
    assert values.keys() <= SETTINGS
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
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


# --- authentication and secrets --------------

PLACEHOLDER = "put-the-password-here"


def test_no_secret_is_in_the_files_and_none_may_be_left_out() -> None:
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            for variable, value in service.get("environment", {}).items():
                if re.search(r"PASSWORD|_KEYS?$", variable):
                    assert re.fullmatch(r"\$\{\w+:\?.+\}", value), (name, variable)
                if "://" in value and variable in ("TAILRACE_STORE", "TAILRACE_EVENTS"):
                    assert re.search(r"://tailrace:\$\{\w+_PASSWORD:\?.+\}@", value), (name, variable)
        assert "TAILRACE_SECRET_KEY" in path.read_text()
    for secret in of_kind("Secret"):
        for name, value in secret["stringData"].items():
            assert "put-" in value, (secret["metadata"]["name"], name)
    # A placeholder that was not replaced is rejected, and not used as a secret.
    with pytest.raises(ConfigurationError, match="at least 16"):
        SecretKeys(named("Secret", "tailrace")["stringData"]["TAILRACE_SECRET_KEY"])


def test_every_database_and_broker_has_a_password() -> None:
    assert "POSTGRES_PASSWORD" in named("Secret", "tailrace-postgres")["stringData"]
    assert container(named("StatefulSet", "tailrace-postgres"))["envFrom"] == [
        {"secretRef": {"name": "tailrace-postgres"}}
    ]
    assert "POSTGRES_PASSWORD" in services()["postgres"]["environment"]
    for command in commands_of_valkey():
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--aclfile"] == "/etc/valkey/users.acl"
    mounts = {
        each["mountPath"]: each for each in container(named("StatefulSet", "tailrace-valkey"))["volumeMounts"]
    }
    assert mounts["/etc/valkey"]["readOnly"] is True
    assert services()["valkey"]["configs"] == [{"source": "valkey-users", "target": "/etc/valkey/users.acl"}]


def users_of_valkey() -> Iterator[str]:
    """The ACL files with the password PASSWORD."""
    compose = yaml.safe_load((DEPLOY / "cluster/compose.yaml").read_text())
    yield re.sub(r">\$\{[^}]+\}", ">PASSWORD", compose["configs"]["valkey-users"]["content"])
    yield named("Secret", "tailrace-valkey")["stringData"]["users.acl"].replace(PLACEHOLDER, "PASSWORD")


def test_users_of_valkey_are_the_same_everywhere_and_may_do_nothing_dangerous() -> None:
    first, second = users_of_valkey()
    assert first == second
    users = {line.split()[1]: line.split()[2:] for line in first.splitlines()}
    assert users.keys() == {"default", "health", "tailrace"}
    assert users["default"] == ["off"]
    assert users["health"] == ["on", "nopass", "resetkeys", "resetchannels", "-@all", "+ping"]
    rules = users["tailrace"]
    assert rules[:7] == [
        "on",
        ">PASSWORD",
        "resetkeys",
        "~tailrace:*",
        "resetchannels",
        "&tailrace:*",
        "-@all",
    ]
    dangerous = {
        "config",
        "flushall",
        "flushdb",
        "keys",
        "eval",
        "debug",
        "acl",
        "shutdown",
        "module",
        "monitor",
    }
    assert all(rule.startswith("+") for rule in rules[7:])
    assert dangerous.isdisjoint(rule[1:].partition("|")[0] for rule in rules[7:])


async def test_nodes_need_no_more_rights_at_valkey_than_the_files_give(postgres: PostgresServer) -> None:
    async def answer(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await anyio.sleep_forever()

    store = await postgres.empty_database("acl")
    with running_valkey(next(users_of_valkey())) as valkey:
        url = f"redis://tailrace:PASSWORD@127.0.0.1:{valkey.port}/0"
        async with AsyncExitStack() as stack:
            clients: list[Rpc] = []
            for _ in range(2):
                app = create_app(Settings(events=url, store=store), handler=FunctionHandler(answer))
                server = await stack.enter_async_context(serving(app))
                clients.append(await stack.enter_async_context(Rpc(server)))
            with anyio.fail_after(30):
                params = {**message(), "configuration": {"returnImmediately": True}}
                task = (await clients[0].result("SendMessage", params))["task"]
                seen: list[list[tuple[int, dict[str, Any]]]] = []
                following = anyio.Event()

                async def follow() -> None:
                    seen.append(
                        await clients[1].stream(
                            "SubscribeToTask", {"id": task["id"]}, seen=lambda _: following.set()
                        )
                    )

                async with anyio.create_task_group() as group:
                    group.start_soon(follow)
                    await following.wait()
                    # The other node executes it.
                    canceled = await clients[1].result("CancelTask", {"id": task["id"]})
                    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
                assert seen[0][-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
        # Neither was denied a command, and both have written.
        client: Any  # incomplete type hints
        async with Redis(port=valkey.port, username="tailrace", password="PASSWORD") as client:
            assert await client.xrange(f"tailrace:{{{task['id']}}}:events")
            for forbidden in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("GET", "other"), ("SET", "other", "x")):
                with pytest.raises(NoPermissionError):
                    await client.execute_command(*forbidden)


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


def test_the_image_it_is_built_on_is_one_and_the_same() -> None:
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", RUNNING.one("FROM"))


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
        project["project"]["readme"],
        *project["project"]["license-files"],
        *(package.split("/")[0] for package in wheel["packages"]),
    }
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_runs_as_an_unprivileged_user_and_keeps_its_tasks_in_its_volume() -> None:
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


async def test_the_image_has_a_health_check() -> None:
    command = json.loads(RUNNING.one("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"

    async def check(port: str) -> int:
        # A proxy does not change this.
        environment = {**os.environ, "TAILRACE_PORT": port, "http_proxy": "http://127.0.0.1:9"}
        return (
            await anyio.run_process([sys.executable, *command[1:]], env=environment, check=False)
        ).returncode

    async with serving(create_app(Settings(model="ollama:x", store="sqlite://"))) as url:
        assert await check(url.rpartition(":")[2]) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    assert await check(port) == 1
