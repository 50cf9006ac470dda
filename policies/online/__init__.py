"""Policies that learn while they serve, from the offline table on: a plugin."""

from __future__ import annotations

from ..fitting import OWN_GUARDS, POLICIES, OwnGuard
from ..loading import KINDS
from .fitting import fit_thompson
from .policy import OnlinePolicy, Status

__all__ = ["OnlinePolicy", "Status", "fit_thompson"]

KINDS[OnlinePolicy.kind] = OnlinePolicy
POLICIES["thompson"] = fit_thompson
OWN_GUARDS["thompson"] = OwnGuard()
