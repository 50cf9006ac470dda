"""Policies that learn while they serve, from the offline table on."""

from __future__ import annotations

from .fitting import fit_thompson
from .policy import OnlinePolicy, Status

__all__ = ["OnlinePolicy", "Status", "fit_thompson"]
