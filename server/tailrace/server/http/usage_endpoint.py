"""The endpoint ``GET /usage``."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response

from tailrace.server.auth.authentication import API_KEY_QUERY, TOKEN_QUERY, Authenticator
from tailrace.server.http.error_responses import Problem, encode_ascii
from tailrace.server.http.origin_guard import OriginGuard
from tailrace.server.http.request_headers import accepts, credentials_of
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.prices import NANO
from tailrace.server.store.store import Store
from tailrace.server.store.usage_store import GROUPS, UsageFilter, UsageSum, milliseconds
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.wrappers.messages import shortened

USAGE_PATH = "/usage"

MAX_GROUPS = 10_000
"""Maximum number of groups in one response."""

PERIOD = timedelta(days=30)
"""The length of the period if the request has no start."""

PARAMETERS = ("start", "end", "caller", "agent", "model", "group_by", "format")

COUNTS = (
    "attempts",
    "incomplete_attempts",
    "unpriced_attempts",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
)
"""The names of the counts in each group."""

_CREDENTIALS = frozenset({API_KEY_QUERY, TOKEN_QUERY})
_FIRST, _LAST = datetime(1970, 2, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class UsageEndpoint:
    """Returns sums of the usage ledger. A caller receives only the caller's own usage.

    Args:
        store: The store with the usage ledger.
        authenticator: Authenticates callers.
        token: The bearer token of operators; None if there are no operators.
        origin_guard: Checks whether a request comes from this machine.
    """

    def __init__(
        self, store: Store, authenticator: Authenticator, *, token: str | None, origin_guard: OriginGuard
    ) -> None:
        self._store = store
        self._authenticator = authenticator
        self._token = token
        self._origin_guard = origin_guard
        # Only one request reads the ledger at a time. It may occupy a thread for long.
        self._lock = anyio.Lock()

    def add_to(self, router: APIRouter) -> None:
        """Add the route to a router."""
        router.add_api_route(
            USAGE_PATH, self._usage, methods=["GET", "HEAD"], include_in_schema=False, response_model=None
        )

    async def _usage(self, request: Request) -> Response:
        try:
            caller = await self._caller(request)
            usage_filter, group_by, is_csv = _read_query(request, caller)
            async with self._lock:
                groups = await self._store.usage.sums(usage_filter, group_by, MAX_GROUPS)
                totals = await self._store.usage.sums(usage_filter, (), 1) if group_by else groups
            if len(groups) > MAX_GROUPS:
                raise InvalidParamsError(
                    f"the period has more than {MAX_GROUPS} groups; choose a shorter period or fewer groups"
                )
        except Exception as error:
            return Problem.of(error).response()
        headers = {"Cache-Control": "no-store", "Vary": "Accept"}
        if is_csv:
            return Response(_csv(group_by, groups), headers=headers, media_type="text/csv; charset=utf-8")
        total = totals[0] if totals else UsageSum((), 0, 0, 0, 0, 0, 0, 0, 0)
        body = {
            "start": _time(usage_filter.start),
            "end": _time(usage_filter.end),
            "groups": [_row(group_by, each) for each in groups] if group_by else [],
            "total": _row((), total),
        }
        return Response(encode_ascii(body), headers=headers, media_type="application/json")

    async def _caller(self, request: Request) -> str | None:
        """Return the caller whose usage a client may read; None for an operator, who may read all usage.

        Raises:
            AuthError: The client may not read any usage.
        """
        credentials = credentials_of(request)
        if self._token is not None and credentials.has_bearer(self._token):
            return None
        user = (await self._authenticator.authenticate(credentials)).user
        if not user and not self._origin_guard.is_local(request.scope):
            raise AuthError(
                "the usage of anonymous callers is available on this machine, and to operators: set "
                "TAILRACE_OPERATOR_TOKEN and send it as a bearer token",
                challenge="",
                forbidden=True,
            )
        return user


def _read_query(request: Request, caller: str | None) -> tuple[UsageFilter, tuple[str, ...], bool]:
    """Return the filter, the names of the grouped columns, and whether the response is CSV.

    Args:
        request: The request.
        caller: The caller whose usage the client may read; None for all callers.

    Raises:
        InvalidParamsError: A parameter is unknown or invalid.
    """
    query = request.query_params
    for name in query:
        if name not in PARAMETERS and name not in _CREDENTIALS:
            raise InvalidParamsError(
                f"there is no parameter {shortened(name)}; the parameters are {', '.join(PARAMETERS)}"
            )
    now = datetime.now(UTC)
    end = _parse_time(query.get("end", ""), "end") or now + timedelta(seconds=1)
    start = _parse_time(query.get("start", ""), "start") or end - PERIOD
    group_by = tuple(dict.fromkeys(filter(None, query.get("group_by", "").split(","))))
    for name in group_by:
        if name not in GROUPS:
            raise InvalidParamsError(f"group_by must be of {', '.join(GROUPS)}, not {shortened(name)}")
    form = query.get("format", "")
    if form not in ("", "json", "csv"):
        raise InvalidParamsError(f"format must be json or csv, not {shortened(form)}")
    named = query.get("caller")
    if caller is not None and named not in (None, caller):
        # Return no usage. The response does not disclose whether the other caller exists.
        start = end
    usage_filter = UsageFilter(
        milliseconds(start),
        milliseconds(end),
        caller if caller is not None else named,
        query.get("agent"),
        query.get("model"),
    )
    return usage_filter, group_by, form == "csv" or (not form and accepts(request, "text/csv"))


def _parse_time(value: str, name: str) -> datetime | None:
    """Parse a date or a time in ISO 8601, by default in UTC. Return None for an empty value."""
    if not value:
        return None
    try:
        # A plus sign in a query is decoded as a space.
        time = datetime.fromisoformat(value.replace(" ", "+") if value.count(":") > 1 else value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    except ValueError:
        time = None
    if time is None or not _FIRST <= time <= _LAST:
        raise InvalidParamsError(
            f"{name} must be a date or time of ISO 8601 from {_FIRST:%Y-%m-%d}, for example 2026-11-01 or "
            f"2026-11-01T12:00:00Z, not {shortened(value)}"
        )
    return time


def _time(value: int) -> str:
    return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _row(group_by: Sequence[str], usage: UsageSum) -> dict[str, Any]:
    """Return the JSON members of a group. The cost is a string, because a number could lose digits."""
    counts = {name: getattr(usage, name) for name in COUNTS}
    return {**dict(zip(group_by, usage.group, strict=True)), **counts, "cost_usd": _usd(usage.cost)}


def _usd(cost: int) -> str:
    return f"{Decimal(cost) / NANO:f}"


def _csv(group_by: Sequence[str], groups: Sequence[UsageSum]) -> bytes:
    """Return groups as CSV (RFC 4180) with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*group_by, *COUNTS, "cost_usd"))
    writer.writeheader()
    writer.writerows(_row(group_by, each) for each in groups)
    return text.getvalue().encode("utf-8", "replace")
