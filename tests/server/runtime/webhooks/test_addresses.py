"""The webhook guard: allowed addresses, by configuration and by DNS resolution."""

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from tailrace.server.runtime.webhooks.addresses import ForbiddenAddress, Reach, WebhookGuard, reach_of
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.requests import AuthenticationInfo, TaskPushNotificationConfig

PUBLIC = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PRIVATE = [
    "127.0.0.1",
    "127.8.9.10",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "192.0.2.1",
    "::1",
    "fd12:3456::1",
    "fec0::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
]
FORBIDDEN = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.1.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "100.100.100.200",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "ff0e::1",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
]


@pytest.mark.parametrize(
    ("addresses", "reach"), [(PUBLIC, Reach.PUBLIC), (PRIVATE, Reach.PRIVATE), (FORBIDDEN, Reach.FORBIDDEN)]
)
def test_an_address_is_what_can_be_met_there(addresses: list[str], reach: Reach) -> None:
    assert {address: reach_of(ip_address(address)) for address in addresses} == dict.fromkeys(
        addresses, reach
    )


def host_in_url(address: str) -> str:
    return f"[{address.replace('%', '%25')}]" if ":" in address else address


@pytest.mark.parametrize("address", [*PRIVATE, *FORBIDDEN])
def test_a_literal_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(InvalidParamsError, match="does not call") as refused:
        WebhookGuard().check_url(f"http://{host_in_url(address)}:8080/hook")
    assert [violation.field for violation in refused.value.violations] == ["url"]


def test_the_switch_lets_private_addresses_in_and_no_forbidden_ones() -> None:
    guard = WebhookGuard(allow_private=True)
    for address in [*PUBLIC, *PRIVATE]:
        assert guard.check_url(f"https://{host_in_url(address)}/hook").host
    for address in FORBIDDEN:
        with pytest.raises(InvalidParamsError):
            guard.check_url(f"https://{host_in_url(address)}/hook")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0",
        "１２７.0.0.1",  # noqa: RUF001 — digits that browsers and servers read as digits
    ],
)
def test_other_ways_to_write_this_machine_are_refused(host: str) -> None:
    with pytest.raises(InvalidParamsError):
        WebhookGuard().check_url(f"http://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "hook",
        "/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///hook",
        "http://[::1",
        "http://example.com:99999/",
        "http://user:password@example.com/",
        "http://user@example.com/",
        "http://exa mple.com/",
        "http://example.com/\r\nX-Other: 1",
        "https://example.com/" + "x" * 2048,
    ],
)
def test_what_is_no_http_url_with_a_host_is_refused(url: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        WebhookGuard(allow_private=True).check_url(url)
    assert "password@" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"token": "a\r\nX-Other: 1"}, "token"),
        ({"token": " a"}, "token"),
        ({"token": "t" * 8193}, "token"),
        ({"authentication": AuthenticationInfo(scheme="Bea rer", credentials="c")}, "authentication.scheme"),
        (
            {"authentication": AuthenticationInfo(scheme="Bearer", credentials="c\n")},
            "authentication.credentials",
        ),
        ({"id": "i" * 257}, "id"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(fields: dict[str, object], where: str) -> None:
    config = TaskPushNotificationConfig.model_validate({"url": "https://example.com/", **fields})
    with pytest.raises(InvalidParamsError) as refused:
        WebhookGuard().check(config)
    assert [violation.field for violation in refused.value.violations] == [where]


def named(*addresses: str) -> WebhookGuard:
    """Return a guard that resolves one name."""

    async def lookup(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("hook.example", 443)
        return addresses

    return WebhookGuard(lookup=lookup)


async def test_a_name_is_resolved_to_the_addresses_that_may_be_called_and_no_others() -> None:
    found = await named("10.0.0.1", "8.8.8.8", "8.8.8.8", "2606:4700::1111").resolve("hook.example", 443)
    assert list(map(str, found)) == ["8.8.8.8", "2606:4700::1111"]


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"])
async def test_a_name_with_only_private_addresses_is_refused_without_naming_them(
    address: str,
) -> None:
    with pytest.raises(ForbiddenAddress) as refused:
        await named(address).resolve("hook.example", 443)
    assert address not in str(refused.value)


async def test_names_are_resolved_by_the_system() -> None:
    found = await WebhookGuard(allow_private=True).resolve("localhost", 80)
    assert set(map(str, found)) <= {"127.0.0.1", "::1"}
    assert found
    with pytest.raises(ForbiddenAddress):
        await WebhookGuard().resolve("localhost", 80)
