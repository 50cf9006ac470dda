"""Servers as arms: any server with OpenAI's API. A plugin like any other package's."""

from ..recipes.kinds import KINDS
from .recipe import EndpointRecipe

KINDS["endpoint"] = EndpointRecipe
