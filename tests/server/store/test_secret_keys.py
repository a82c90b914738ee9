import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.store.secret_keys import SecretKeys
from tailrace.wrappers import ConfigurationError

SECRET = "0123456789abcdef"


def test_equal_arguments_give_equal_identifiers() -> None:
    assert SecretKeys(SECRET).external_id("alice", "context", "c1") == SecretKeys(SECRET).external_id(
        "alice", "context", "c1"
    )


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_different_owners_or_names_give_different_identifiers(first: list[str], second: list[str]) -> None:
    keys = SecretKeys(SECRET)
    assert (keys.external_id("", *first) == keys.external_id("", *second)) == (first == second)
    assert keys.external_id("alice", *first) != keys.external_id("bob", *second)


def test_another_secret_gives_other_keys_and_identifiers() -> None:
    one, other = SecretKeys(SECRET), SecretKeys(SECRET[::-1])
    assert one.derive("a") != other.derive("a")
    assert one.external_id("alice", "c1") != other.external_id("alice", "c1")


def test_each_purpose_has_a_key_of_its_own() -> None:
    keys = SecretKeys(SECRET)
    assert keys.derive("events") != keys.derive("webhooks")


def test_a_replaced_secret_is_still_accepted() -> None:
    old, both = SecretKeys(SECRET), SecretKeys(f"{SECRET[::-1]}, {SECRET}")
    assert old.derive("a") in both.derive_all("a")
    assert old.derive("a") != both.derive("a")


def test_the_stored_secret_is_used_unless_one_is_configured() -> None:
    stored, configured = SecretKeys(), SecretKeys(SECRET)
    stored.use_stored(SECRET.encode())
    assert stored.derive("a") == configured.derive("a")
    configured.use_stored(b"another secret of sixteen bytes")
    assert stored.derive("a") == configured.derive("a")


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="secret 2 of 2 has 5 bytes"):
        SecretKeys(f"{SECRET},short")
