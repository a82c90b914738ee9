"""The authenticator that the settings of a server describe."""

from tailrace.server.auth.authentication import Anonymous, AnyOf, ApiKeys, Authenticator
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError


def create_authenticator(settings: Settings) -> Authenticator:
    """Create the authenticator that the settings describe: API keys, bearer tokens, either of them, or none.

    Raises:
        ConfigurationError: They cannot be used.
    """
    known: list[Authenticator] = []
    if settings.caller_keys is not None:
        known.append(ApiKeys(_read_caller_keys(settings.caller_keys.get_secret_value())))
    if settings.caller_jwks_url:
        # Imported here: a server without bearer tokens needs no signature checks.
        from tailrace.server.auth.bearer import JwtBearer

        known.append(
            JwtBearer(
                settings.caller_jwks_url,
                issuer=settings.caller_jwt_issuer,
                audience=settings.caller_jwt_audience,
            )
        )
    if not known:
        return Anonymous()
    return known[0] if len(known) == 1 else AnyOf(*known)


def _read_caller_keys(setting: str) -> dict[str, list[str]]:
    """Parse ``NAME:KEY,NAME:KEY`` into keys by name. A name may occur several times, for key rotation.

    Raises:
        ConfigurationError: An entry is no such pair. The message does not show it: it may be a key.
    """
    keys: dict[str, list[str]] = {}
    entries = setting.split(",")
    for number, entry in enumerate(entries, 1):
        user, colon, key = (each.strip() for each in entry.partition(":"))
        if not (user and colon and key):
            lacks = (
                "a name before the colon" if colon and not user else "a key" if colon else "the form NAME:KEY"
            )
            raise ConfigurationError(f"TAILRACE_CALLER_KEYS: entry {number} of {len(entries)} lacks {lacks}")
        keys.setdefault(user, []).append(key)
    return keys
