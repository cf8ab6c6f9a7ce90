"""The changes of a configuration that a running daemon can apply. Compares settings; reads no file, applies nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from sidecar.config.base import Model, OneOf
from sidecar.config.members import DECIDING
from sidecar.config.model import Settings
from sidecar.errors import ConfigError

AT_ONCE = ("batch", "retry", "log", "drain_timeout", "sink.http")
"""Keys that apply at once, with all below them."""
WHEN_QUIET = tuple(key for row in DECIDING if row.is_quiet for key in row.keys)
"""Keys that decide the content of parts: they apply when nothing is open or outstanding."""
AFTER_RESTART = ("sink.http.ordering",)
"""Exceptions below these keys; all other keys need a restart too."""
OF_OTHERS = ("spark",)
"""Keys that the daemon ignores."""


M = TypeVar("M", bound=Model)


class SettingsChanges(NamedTuple):
    """A changed configuration, divided by when its keys apply; keys are dotted, as in the file."""

    at_once: tuple[str, ...]
    when_quiet: tuple[str, ...]
    after_restart: tuple[str, ...]
    now: Settings
    """The running settings with the keys that apply at once."""
    then: Settings
    """`now` with the keys that apply when nothing is open."""


def changes(running: Settings, read: Settings) -> SettingsChanges:
    """Divide the differences; raises `ConfigError` if the keys that apply contradict those that need a restart."""
    found: dict[str, list[str]] = {"at_once": [], "when_quiet": [], "after_restart": []}
    can_wait = running.source.rocketmq is None and running.sink.http is not None
    for key in _differing(running, read):
        when = _when(key)
        if when == "when_quiet" and not can_wait:
            when = "after_restart"
        if when:
            found[when].append(key)
    at_once, when_quiet, after_restart = (tuple(keys) for keys in found.values())
    now = _merged(running, read, at_once, after_restart)
    return SettingsChanges(at_once, when_quiet, after_restart, now, _merged(now, read, when_quiet, after_restart))


def _when(key: str) -> str:
    tables = {"": OF_OTHERS, "at_once": AT_ONCE, "when_quiet": WHEN_QUIET, "after_restart": AFTER_RESTART}
    matches = [(len(above), when) for when, keys in tables.items() for above in keys if _is_below(key, above)]
    return max(matches, default=(0, "after_restart"))[1]


def _is_below(key: str, above: str) -> bool:
    return key == above or key.startswith(above + ".")


def _differing(one: Model, other: Model, prefix: str = "") -> Iterator[str]:
    for name, field in type(one).model_fields.items():
        mine, theirs, key = getattr(one, name), getattr(other, name), prefix + (field.alias or name)
        if _is_same_kind(mine, theirs):
            yield from _differing(mine, theirs, f"{key}.")
        elif mine != theirs:
            yield key


def _is_same_kind(mine: object, theirs: object) -> bool:
    """Whether two sections have the same keys; sections with a choice differ if the choice does."""
    if isinstance(mine, OneOf) and isinstance(theirs, OneOf):
        return mine.name == theirs.name
    return isinstance(mine, Model) and type(mine) is type(theirs)


def _merged(running: Settings, read: Settings, keys: tuple[str, ...], after_restart: tuple[str, ...]) -> Settings:
    merged = _with(running, read, keys)
    sections = {field.alias or name: getattr(merged, name) for name, field in Settings.model_fields.items()}
    try:  # a section may limit values of another
        Settings.model_validate({key: section for key, section in sections.items() if isinstance(section, Model)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, waiting = ".".join(map(str, first["loc"])), ", ".join(after_restart)
        raise ConfigError(
            f"{place} {first['msg'].removeprefix('Value error, ')} under the settings that need a restart ({waiting})",
            hint="restart the daemon",
        ) from error
    return merged


def _with(one: M, other: M, keys: Collection[str], prefix: str = "") -> M:
    """`one` with the values that `other` has for these keys."""
    update = {}
    for name, field in type(one).model_fields.items():
        mine, theirs, key = getattr(one, name), getattr(other, name), prefix + (field.alias or name)
        if _is_same_kind(mine, theirs):
            update[name] = _with(mine, theirs, keys, f"{key}.")
        elif key in keys:
            update[name] = theirs
    return one.model_copy(update=update)
