"""Creates the authenticator of a server from its settings."""

from tailrace.server.auth.authentication import Anonymous, ApiKeys, Authenticator, CombinedAuthenticator
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError


def create_authenticator(settings: Settings, keys: Authenticator | None = None) -> Authenticator:
    """Create an authenticator for API keys, bearer tokens, or both. Without keys and tokens, it accepts all callers.

    Args:
        settings: The settings.
        keys: Replaces the API keys of the settings; None to use them.

    Raises:
        ConfigurationError: A setting is invalid.
    """
    authenticators: list[Authenticator] = []
    keys = keys or create_keys(settings)
    if keys is not None:
        authenticators.append(keys)
    if settings.caller_jwt.jwks_url:
        # Only servers with bearer tokens need the library for signatures.
        from tailrace.server.auth.bearer import JwtBearer

        tokens = settings.caller_jwt
        authenticators.append(JwtBearer(tokens.jwks_url, issuer=tokens.issuer, audience=tokens.audience))
    if not authenticators:
        return Anonymous()
    return authenticators[0] if len(authenticators) == 1 else CombinedAuthenticator(*authenticators)


def create_keys(settings: Settings) -> ApiKeys | None:
    """Create the authenticator for API keys; None if the settings have no keys.

    Raises:
        ConfigurationError: The keys are invalid.
    """
    if settings.caller_keys is None:
        return None
    return ApiKeys(_read_caller_keys(settings.caller_keys.get_secret_value()))


def _read_caller_keys(setting: str) -> dict[str, list[str]]:
    """Parse ``NAME:KEY,NAME:KEY`` into keys by name. A name may occur several times.

    Raises:
        ConfigurationError: An entry is not a pair. The message does not contain the entry, which may be a key.
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
