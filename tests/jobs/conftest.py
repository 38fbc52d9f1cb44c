"""The kernel's tests: properties are judged by their answers, not by how busy the machine is."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kernel", deadline=None)
settings.load_profile("kernel")
