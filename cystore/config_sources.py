"""The sources of a process's settings: arguments (or a URL), the environment, a TOML file.

An argument wins over the environment, and the environment over the file. Settings that shape a store's files are the
store's, so a value that contradicts one of them is refused (`store_settings.effective`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cystore.config import DEFAULTS, StoreConfig, canonical, toml_settings
from cystore.errors import StoreConfigError

PREFIX = "CYSTORE_"
FILE = "CYSTORE_CONFIG"  # names the TOML file
ALIKE = 0.85  # a name this similar to a setting's is a misspelt one


def resolve(
    arguments: dict[str, Any],
    *,
    file: os.PathLike[str] | str | None = None,
    arguments_source: str = "argument",
) -> StoreConfig:
    """The configuration of `arguments`, then of the environment, then of the TOML file `file` (without one, of the
    file that CYSTORE_CONFIG names). `arguments_source` is what `StoreConfig.source` gives for the arguments.

    Raises StoreConfigError, which names the source, the setting, the value and the allowed values.
    """
    surroundings = given_outside(file)
    if not surroundings:
        return StoreConfig.from_mapping(arguments, sources=dict.fromkeys(arguments, arguments_source))
    outside = {name: value for name, (value, _) in surroundings.items()}
    sources = {name: source for name, (_, source) in surroundings.items()} | dict.fromkeys(
        arguments, arguments_source
    )
    return StoreConfig.from_mapping({**outside, **arguments}, sources=sources)


def given_outside(
    file: os.PathLike[str] | str | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, tuple[Any, str]]:
    """For each setting that the environment or the TOML file gives: its value, checked, and its source."""
    environment = os.environ if environment is None else environment
    named = [name for name in environment if name.startswith(PREFIX)]
    found: dict[str, tuple[Any, str]] = {}
    path = file if file is not None else environment.get(FILE) if FILE in named else None
    if path is not None:
        if not os.fspath(path):
            raise StoreConfigError(f"{FILE} is empty: it must name a TOML file")
        for name, value in toml_settings(Path(path)).items():
            found[name] = _checked(name, value, os.fspath(path)), os.fspath(path)
    for variable in named:
        name = variable.removeprefix(PREFIX).lower()
        if name in DEFAULTS:
            found[name] = _from_text(name, environment[variable], variable), variable
        elif variable != FILE:
            _refuse_misspelt(name, variable)
    return found


def _from_text(name: str, text: str, variable: str) -> Any:
    try:
        value = StoreConfig.parse_setting(f"{name}={text}")[1]
    except StoreConfigError as error:
        raise StoreConfigError(f"{variable}: {error}") from error
    return _checked(name, value, variable)


def _checked(name: str, value: Any, source: str) -> Any:
    try:
        StoreConfig.from_mapping({name: value})
    except StoreConfigError as error:
        raise StoreConfigError(f"{source}: {error}") from error
    return tuple(value) if isinstance(value, list) else canonical(name, value)


def _refuse_misspelt(name: str, variable: str) -> None:
    """Refuses only names that resemble a setting's. Other programs have variables with this prefix, too: Kubernetes
    makes CYSTORE_SERVICE_HOST for a service called cystore."""
    import difflib

    near = difflib.get_close_matches(name, DEFAULTS, n=1, cutoff=ALIKE)
    if near:
        raise StoreConfigError(
            f"{variable}: there is no setting {name!r}; did you mean {PREFIX}{near[0].upper()}?"
        )
