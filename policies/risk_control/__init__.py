"""Lossy arms as far as their loss is bounded (`draftpick train --max-loss`): a plugin."""

from __future__ import annotations

from ..fitting import OWN_GUARDS, POLICIES
from ..loading import KINDS
from .fitting import fit_risk_control
from .policy import Guarantee, RiskControlPolicy
from .report import RiskGuard
from .thresholds import with_temperature

__all__ = ["Guarantee", "RiskControlPolicy", "fit_risk_control", "with_temperature"]

KINDS[RiskControlPolicy.kind] = RiskControlPolicy
POLICIES["risk-control"] = fit_risk_control
OWN_GUARDS["risk-control"] = RiskGuard()
