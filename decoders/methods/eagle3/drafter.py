"""An EAGLE-3 head as drafter (D28)."""

from __future__ import annotations

from ..neural.drafter import NeuralDrafter


class Eagle3Drafter(NeuralDrafter):
    """A draft model's chain, from a head over its target's states. A class of its own, since what
    it drafts along a known answer depends on where each draft began."""
