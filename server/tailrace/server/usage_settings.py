"""The settings of prices and budgets."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator


class ModelPrice(BaseModel):
    """The price of a model in US dollars per million tokens.

    Attributes:
        input: Price of input tokens.
        output: Price of output tokens.
        cached: Price of input tokens that the provider reads from its cache; if None, the price of ``input``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Annotated[Decimal, Field(ge=0, le=1_000_000)]
    output: Annotated[Decimal, Field(ge=0, le=1_000_000)]
    cached: Annotated[Decimal, Field(ge=0, le=1_000_000)] | None = None


class Budget(BaseModel):
    """A limit on the tokens, or on the costs, of model calls in a period.

    Attributes:
        tokens: Input and output tokens. Set either ``tokens`` or ``usd``.
        usd: US dollars, for models whose price is known.
        period: ``minute``, ``hour``, ``day`` or ``month``, in UTC.
        caller: The caller to whom the budget applies. None: each caller separately, unless ``shared`` is set.
        shared: Whether all callers share one budget.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: PositiveInt | None = None
    usd: Annotated[Decimal, Field(gt=0, le=1_000_000)] | None = None
    period: Literal["minute", "hour", "day", "month"]
    caller: str | None = None
    shared: bool = False

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if (self.tokens is None) == (self.usd is None):
            raise ValueError("set either tokens or usd")
        if self.shared and self.caller is not None:
            raise ValueError("set either caller or shared")
        return self
