"""Building blocks of all settings: strict models, one-of sections, marks of keys, checked texts and addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

PORT_MAX = 65_535
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


class Address(NamedTuple):
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(value: Any, example: str, also: str = "", *, port_min: int = 1) -> Address:
    """Read an address; an IPv6 address has brackets.

    Args:
        also: Other values that the key takes, for the message.
        port_min: 0 if any free port may be requested.

    Raises:
        ValueError: It is no address, or the port number is invalid.
    """
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs HOST:PORT, such as {example}{also}")
    if not port_min <= int(match[2]) <= PORT_MAX:
        raise ValueError(f"has a port that is not from {port_min} to {PORT_MAX}")
    return Address(match[1].strip("[]"), int(match[2]))


@dataclass(frozen=True, slots=True)
class KeyKind:
    """Metadata of a key: its type in the reference, if that does not follow from the Python type."""

    text: str


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Metadata of a key: its meaning for `sidecar spark run`. Without it a key applies; a section's covers its keys."""

    text: str


@dataclass(frozen=True, slots=True)
class NotOnSpark:
    """Metadata of a key that `sidecar spark run` refuses, with the reason."""

    reason: str


HIDDEN = "***"
_SECRET_NAME = re.compile(r"passw|passphrase|secret|token|credential|api[-_.]?key|key\.pem|oauthbearer\.config", re.I)


class Expanded(str):
    """Text with variables replaced; `written` is its form in the file, the only form that may be shown."""

    __slots__ = ("written",)
    written: str

    @classmethod
    def of(cls, text: str, written: str) -> Self:
        self = cls(text)
        self.written = written
        return self


class Model(BaseModel):
    """A section: unknown keys are errors, text is never silently a number, nothing changes later."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class LazySection:
    """Metadata of a section whose model is imported with the first file that has the section."""

    module: str
    name: str

    @property
    def model(self) -> type[Model]:
        model: type[Model] = getattr(import_module(f"sidecar.config.{self.module}"), self.name)
        return model

    def _read(self, value: Any, info: ValidationInfo) -> Model:
        return self.model.model_validate(value, context=info.context)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # The handler gives a model its place in `$defs` only inside of another schema.
        return handler(core_schema.definitions_schema(self.model.__pydantic_core_schema__, []))


def lazy(module: str, name: str) -> Any:
    """A type of fields that stands for a model of a module that is not imported yet."""
    return Annotated[Any, LazySection(module, name)]


class OneOf(Model):
    """A section that holds exactly one of its keys."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="wrap")
    @classmethod
    def _exactly_one(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        complaint = cls._complaint(data) if isinstance(data, Mapping) else None
        if complaint is None:
            return handler(data)
        errors = [complaint]
        try:
            handler(data)
        except ValidationError as error:  # an error inside is reported along with it
            errors += [
                InitErrorDetails(type=inner["type"], loc=inner["loc"], input=inner["input"], ctx=inner.get("ctx", {}))
                for inner in error.errors()
            ]
        raise ValidationError.from_exception_data(cls.__name__, errors)

    @property
    def name(self) -> str:
        """The key that is set, as in the file."""
        return next(key for name, key in self.keys().items() if getattr(self, name) is not None)

    @property
    def only_one(self) -> Any:
        """The value of the key that is set."""
        return next(value for name in self.keys() if (value := getattr(self, name)) is not None)

    @classmethod
    def listed(cls, between: str = " and ") -> str:
        """All keys, for a description."""
        return between.join(f"`{key}`" for key in cls.keys().values())

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Each key as in the file, by the name of its field."""
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def _complaint(cls, data: Mapping[str, Any]) -> InitErrorDetails | None:
        names = list(cls.keys().values())
        given = [key for key in data if key in names]
        if len(given) > 1:
            return problem(f"conflicts with {given[0]}: keep one of them", data, given[1])
        if not data:
            return problem(f"needs one of {', '.join(names)}", data)
        return None


def problem(text: str, value: Any, *loc: str) -> InitErrorDetails:
    """One error at a place below the validated value, to be raised with others."""
    return InitErrorDetails(type="value_error", loc=loc, input=value, ctx={"error": ValueError(text)})


def refused(text: str, value: Any, *loc: str) -> ValidationError:
    """The error of a section with one problem, at a place below the validated value."""
    return ValidationError.from_exception_data("section", [problem(text, value, *loc)])


def secret_name(name: str) -> bool:
    """Whether a key of this name has a value that must not be shown."""
    return bool(_SECRET_NAME.search(name))


def hide_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """The same mapping with the values of secret names hidden."""
    return {name: HIDDEN if secret_name(name) else value for name, value in values.items()}


def matching(pattern: str, complaint: str) -> Callable[[str], str]:
    """A validator for text that must match `pattern` as a whole; `complaint` describes the right form."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(complaint)
        return text

    return check


def kind(value: Any) -> str:
    """`section` or `word`, for keys that accept either."""
    return "word" if isinstance(value, str) else "section"


def words(*choices: str) -> BeforeValidator:
    """Refuse everything that is neither a section nor one of the choices; sections among these begin with a brace."""
    needed = ", ".join(choices[:-1]) + " or " + choices[-1]

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) or (isinstance(value, str) and value in choices):
            return value
        raise ValueError(f"needs {needed}")

    return BeforeValidator(check)


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, Expanded) and re.fullmatch(r"-?\d{1,18}", value) else value


def _yes_or_no(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, Expanded) else value


def plain(value: Any) -> Any:
    """The text of a variable."""
    return str(value) if isinstance(value, Expanded) else value


def _path(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("needs a path")
    if value.startswith("~"):
        raise ValueError("~ is not expanded: write ${HOME} or the full path")
    return Path(value)


# A variable's value is text: numbers and flags accept it, while a number in quotes stays an error.
Int: TypeAlias = Annotated[int, BeforeValidator(_whole_number)]
Bool: TypeAlias = Annotated[bool, BeforeValidator(_yes_or_no)]
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096), BeforeValidator(plain)]
FilePath: TypeAlias = Annotated[
    Path,
    BeforeValidator(_path),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Secret: TypeAlias = Annotated[SecretStr, Field(min_length=1), PlainSerializer(lambda _: HIDDEN, return_type=str)]
Location: TypeAlias = Annotated[
    Text, KeyKind("path or URL"), AfterValidator(matching(r"[^~\s\0][^\0]*", "needs a path, or an address"))
]
"""A path or a URL of a remote file system: not a `Path`, which would remove a slash from ``s3a://``."""


class TlsFiles(Model):
    """The certificates of a section on TLS."""

    section: ClassVar[str]
    """Path of the section in the file."""

    ca: FilePath | None = Field(default=None, description="Trusted certificates, PEM. Defaults to the system's.")
    cert: FilePath | None = Field(default=None, description="Client certificate, PEM.")
    key: FilePath | None = Field(
        default=None, description="Private key of `cert`, PEM; required if `cert` does not contain it."
    )

    @field_validator("key")
    @classmethod
    def _key_has_cert(cls, key: Any, info: ValidationInfo) -> Any:
        if info.data.get("cert", "") is None:
            raise ValueError(f"needs {cls.section}.cert")
        return key
