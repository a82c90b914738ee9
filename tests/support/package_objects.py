"""Objects of the classes of provider packages."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class _PackageObject(BaseModel):
    model_config = ConfigDict(extra="allow")


def package_object(fields: Mapping[str, Any]) -> BaseModel:
    """Return a model whose JSON has these fields."""
    return _PackageObject.model_validate(fields)
