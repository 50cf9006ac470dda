"""What `from collect import ...` gives."""

from __future__ import annotations

import pkgutil

import collect


def test_every_public_name_is_there_and_no_module_hides_it() -> None:
    modules = {module.name for module in pkgutil.iter_modules(collect.__path__)}
    for name in collect.__all__:
        assert getattr(collect, name) is not None
        assert name not in modules, f"the module collect.{name} would be imported in its place"
