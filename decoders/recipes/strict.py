"""The base of everything that YAML may say."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
