"""The base of everything that YAML may say."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown fields are mistakes, and so are numbers without end."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
