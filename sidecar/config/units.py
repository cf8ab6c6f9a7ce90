"""Durations and sizes: text with a unit in the file, a whole number of milliseconds or bytes in the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sidecar.core.messages.instants import UNITS_MS

DURATIONS = dict(reversed(UNITS_MS.items()))
SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_QUANTITY = re.compile(r"([0-9]{1,15}) ?([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Pydantic metadata for a whole number that is written with its unit; bounds are inclusive."""

    minimum: str
    maximum: str

    noun: ClassVar[str] = ""
    examples: ClassVar[str] = ""
    units: ClassVar[Mapping[str, int]] = {}

    def number(self, text: str) -> int | None:
        """The number of `text`; None if it is no quantity with one of the units."""
        match = _QUANTITY.fullmatch(text)
        return int(match[1]) * self.units[match[2]] if match and match[2] in self.units else None

    @classmethod
    def text(cls, number: int) -> str:
        """The shortest form of `number`: with the largest unit that divides it."""
        fitting = [(factor, unit) for unit, factor in cls.units.items() if number % factor == 0 and number >= factor]
        factor, unit = max(fitting, default=(1, next(iter(cls.units))))
        return f"{number // factor}{unit}"

    def parse(self, value: Any) -> int:
        """The number of a value in the file; raises `ValueError` without a known unit, or out of bounds."""
        number = self.number(value) if isinstance(value, str) else None
        if number is None:
            raise ValueError(f"needs a {self.noun} with its unit ({', '.join(self.units)}), such as {self.examples}")
        if not (self.number(self.minimum) or 0) <= number <= (self.number(self.maximum) or 0):
            raise ValueError(f"must be from {self.minimum} to {self.maximum}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.parse, serialization=core_schema.plain_serializer_function_ser_schema(self.text)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": rf"^[0-9]{{1,15}} ?({'|'.join(self.units)})$"}


class Duration(Quantity):
    """A duration in milliseconds, written as ``200ms``, ``10s``, ``5m``, ``1h`` or ``1d``."""

    __slots__ = ()
    noun = "duration"
    examples = "200ms, 10s or 5m"
    units = DURATIONS


class Size(Quantity):
    """A size in bytes, written as ``512B``, ``64KiB``, ``4MiB``, ``1GiB``, or decimal ``KB``, ``MB``, ``GB``."""

    __slots__ = ()
    noun = "size"
    examples = "512B, 64KiB or 4MiB"
    units = SIZES
