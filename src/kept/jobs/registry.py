"""The tasks an App knows, by name and by former names."""

from __future__ import annotations

from collections.abc import Iterator

from kept.errors import NotFound, Refused
from kept.jobs.declaration import Declaration


class Registry:
    """Names are unique within one App; an alias keeps an old name working across a rename."""

    def __init__(self) -> None:
        self._declared: dict[str, Declaration] = {}
        self._names: dict[str, Declaration] = {}

    def add(self, declaration: Declaration) -> None:
        for name in (declaration.name, *declaration.aliases):
            if name in self._names:
                taken = self._names[name].handler
                raise Refused(
                    f"task {name!r} is declared twice: by {taken.__module__}.{taken.__qualname__} and by "
                    f"{declaration.handler.__module__}.{declaration.handler.__qualname__}",
                    field="name",
                )
        self._declared[declaration.name] = declaration
        for name in (declaration.name, *declaration.aliases):
            self._names[name] = declaration

    def find(self, name: str) -> Declaration | None:
        """The task of this name or former name."""
        return self._names.get(name)

    def __getitem__(self, name: str) -> Declaration:
        found = self._names.get(name)
        if found is None:
            raise NotFound(f"no task named {name!r} is declared")
        return found

    def __iter__(self) -> Iterator[Declaration]:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def digests(self) -> dict[str, str]:
        """Each task's name, and each former name, with a digest of its declaration."""
        return {name: declaration.digest() for name, declaration in self._names.items()}
