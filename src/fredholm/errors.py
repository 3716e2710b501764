"""Errors that name the expected input, the actual one and a fix.

Every error a user can cause derives from :class:`FredholmError`, so that a caller can tell bad
input from a defect. Where Python has a fitting built-in (``ValueError``, ``TypeError``,
``ImportError``), the class derives from it as well.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class FredholmError(Exception):
    """Base of every error caused by input, configuration or environment.

    Attributes:
        exit_code: exit code of the command line.
        said: whether another process of the same run reports it.
    """

    exit_code = 2
    said = False


class DomainError(FredholmError, ValueError):
    """A domain's positions, measure, mask or order are unusable."""


class ShapeError(FredholmError, ValueError):
    """A tensor's shape, dtype or device does not fit."""


class OptionError(FredholmError, ValueError):
    """An option has an unknown name or an impossible value."""


class UnknownOptionError(OptionError):
    """An argument has an unknown name.

    Attributes:
        name: the unknown name.
    """

    def __init__(self, message: str, *, name: str):
        super().__init__(message)
        self.name = name


class FixedOptionError(OptionError):
    """An argument is one that the class sets itself.

    Attributes:
        name: of the argument.
    """

    def __init__(self, message: str, *, name: str):
        super().__init__(message)
        self.name = name


class StrategyError(FredholmError, TypeError):
    """A strategy cannot integrate this kernel."""


class BackendError(FredholmError, RuntimeError):
    """A requested backend cannot run on this machine."""


class PeerError(FredholmError, RuntimeError):
    """Another process of a sharded domain died or no longer answers."""


class InferenceError(FredholmError, RuntimeError):
    """A model is trained, or its weights change, inside a block for inference."""


class DerivativeError(FredholmError, NotImplementedError):
    """An op does not have the requested derivative."""


class ConvergenceError(FredholmError, ArithmeticError):
    """An iteration did not reach its tolerance.

    Attributes:
        radius: estimate of the iterated operator's spectral radius.
        residual: relative residual of the last iterate.
        iterations: number of products with the operator.
    """

    def __init__(
        self,
        message: str,
        *,
        radius: float,
        residual: float,
        iterations: int,
    ):
        super().__init__(message)
        self.radius = radius
        self.residual = residual
        self.iterations = iterations


class DataError(FredholmError, RuntimeError):
    """A data set or file is missing, truncated, corrupt or of the wrong format."""


class ConversionError(FredholmError, TypeError):
    """A layer or model cannot be converted: it is unknown, or has an unsupported option."""


class ExportError(FredholmError, RuntimeError):
    """A model cannot be exported, or its program gives other results than the model."""


class CheckpointError(FredholmError, RuntimeError):
    """A checkpoint or pretrained folder cannot be used."""


class StorageError(FredholmError, OSError):
    """A file or folder cannot be read or written: a full disk, a missing permission, a file where a
    folder is needed.
    """


class RecipeError(FredholmError, ValueError):
    """A recipe has an unknown key, a wrong type or an impossible combination."""


class TrustError(FredholmError, RuntimeError):
    """Continuing would execute untrusted code from a folder, which needs --trust-code."""


class MissingExtraError(FredholmError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(
            f"{purpose} needs {package!r}, which is not installed: pip install 'fredholm[{extra}]'"
        )


def require(package: str, extra: str, purpose: str) -> Any:
    """Import ``package`` or raise :class:`MissingExtraError` naming the extra that brings it.

    Example:
        >>> require("json", "train", "this example").__name__
        'json'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


def suggest(name: str, known: Iterable[object]) -> str:
    """Return ``"; did you mean 'x'?"`` where a known name is close, else the list of known names.

    Example:
        >>> suggest("sofmax", ["softmax", "itnet"])
        "; did you mean 'softmax'?"
    """
    close = closest(name, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; known: {', '.join(sorted(str(k) for k in known))}"


def closest(name: str, known: Iterable[object]) -> str | None:
    """Return the known name that is nearest to a name, or None where none is near.

    Example:
        >>> closest("sofmax", ["softmax", "itnet"])
        'softmax'
    """
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), names, n=1)
    return next(iter(close), None)
