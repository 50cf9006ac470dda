"""The base of everything that YAML may say."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown fields, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
