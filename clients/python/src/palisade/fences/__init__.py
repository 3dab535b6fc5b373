"""Fences check fencing tokens at the resource itself.

Claim first, before the first read; then read, think and write. Each step raises `Stale` if a newer holder has claimed
the resource: then give up. `rejection(error)` finds it in the error of a driver or a framework."""

from ._rejections import rejection
from .errors import FenceLost, FenceNotInstalled, Rejected, Stale
from .rule import Pass

__all__ = ["FenceLost", "FenceNotInstalled", "Pass", "Rejected", "Stale", "rejection"]
