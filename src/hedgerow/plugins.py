# SPDX-License-Identifier: Apache-2.0
"""What other packages add, loaded on the word of whoever runs this process, and of nobody else.

A plug-in is a module that calls one of the functions `add_...` when it is imported. It is named by an entry point of
the group `hedgerow.plugins`, as a module, or as a file. What a plan, a model or a peer names is never imported. On
one's own machine `--plugin` names it; a node or a coordinator loads what its own file names, with the version and the
digest that its owner has read.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType

from hedgerow.errors import HedgerowError, UsageError

GROUP = "hedgerow.plugins"
_IMPORTED = tuple(importlib.machinery.all_suffixes())


def load_plugin(name: str) -> ModuleType:
    """Import a plug-in: an entry point of `GROUP`, a module, or a file that ends in .py. Twice is once.

    Raises:
        UsageError: code "plugin"; there is none of that name. Code "name-taken": it adds a name that is taken.
    """
    return _load(next((entry.module for entry in entry_points(group=GROUP, name=name)), name))


def _load(name: str) -> ModuleType:
    """Import a module by its name or its file."""
    try:
        module = _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except HedgerowError:
        raise
    except (ModuleNotFoundError, FileNotFoundError) as absent:
        raise UsageError("plugin", name=name, why=f"It cannot be imported: {absent}.") from absent
    except Exception as fault:
        raise UsageError("plugin-failed", name=name, error=f"{type(fault).__name__}: {fault}") from fault
    module.__hedgerow_plugged__ = True  # type: ignore[attr-defined]
    return module


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module of its name, once."""
    name = path.stem
    if name in sys.modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").resolve() != path.resolve():
            raise UsageError("plugin", name=str(path), why=f"Another module is called {name}: rename the file.")
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(path)
    # Before it runs: its dataclasses look their own module up.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def explain_failed_plugin(error: BaseException) -> UsageError | None:
    """The error of a command in which a plug-in's own code has failed; None where it had no part in it."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        name = str(frame.f_globals.get("__name__"))
        if getattr(sys.modules.get(name.partition(".")[0]), "__hedgerow_plugged__", False):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
            return UsageError("plugin-failed", name=name, error=f"{place}: {type(error).__name__}: {error}")
    return None


def describe_plugin(module: ModuleType) -> str:
    """How a policy names a plug-in: its module, its version, and the SHA-256 of its sources, in one line.

    Raises:
        UsageError: code "plugin"; no other process can load it, for it has no file or no name of its own.
    """
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    if top.__name__ == "__main__" or top.__file__ is None:
        raise UsageError("plugin", name=top.__name__, why="No other process can load it: put it into a file.")
    return f"{module.__name__} {_version_of(module)} sha256:{_digest_sources(Path(top.__file__))}"


def _digest_sources(place: Path) -> str:
    """The SHA-256 of a module, or of all that can be imported within a package, compiled modules as well."""
    within = sorted(place.parent.rglob("*")) if place.name == "__init__.py" else [place]
    digest = hashlib.sha256()
    for file in within:
        if file.name.endswith(_IMPORTED) and file.parent.name != "__pycache__":
            content = file.read_bytes()
            digest.update(f"{file.relative_to(place.parent).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _version_of(module: ModuleType) -> str:
    """A module's own version, else its distribution's, else 0."""
    own = getattr(module, "__version__", None)
    if own is not None:
        return str(own)
    for distribution in packages_distributions().get(module.__name__.partition(".")[0], []):
        with suppress(PackageNotFoundError):
            return version(distribution)
    return "0"


class _SourceAlone(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Agreed(MetaPathFinder):
    """Finds the modules of packages whose sources were read, and has those compiled: Python would run what lies beside
    them in __pycache__, a wheel may bring that along, and nothing shows whether it was made of these sources.
    """

    def __init__(self) -> None:
        self.packages = set[str]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `MetaPathFinder`."""
        if fullname.partition(".")[0] not in self.packages:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        found = next(filter(None, others), None)
        if found is not None and isinstance(found.loader, importlib.machinery.SourceFileLoader):
            found.loader = _SourceAlone(found.loader.name, found.loader.path)
        return found


_AGREED = _Agreed()


def load_agreed(plugins: Iterable[str]) -> None:
    """Load what a policy names, each as `describe_plugin` says it.

    Nothing is imported whose sources are not those that the owner has read: a digest is compared first.

    Raises:
        UsageError: code "plugin"; it is not there, or is another than the policy names.
    """
    for line in plugins:
        name = line.partition(" ")[0]
        # The package that it is in: to find a module within would import that, unread.
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None or spec.origin is None or not spec.has_location:
            raise UsageError("plugin", name=name, why="It is named in this party's own file, and not installed here.")
        if _digest_sources(Path(spec.origin)) != line.rpartition("sha256:")[2]:
            raise UsageError("plugin", name=name, why="Its sources are not those that this party's own file names.")
        if _AGREED not in sys.meta_path:
            sys.meta_path.insert(0, _AGREED)
        _AGREED.packages.add(name.partition(".")[0])
        # Not `load_plugin`: an entry point of this name may lead to another module.
        if (found := describe_plugin(_load(name))) != line:
            raise UsageError("plugin", name=name, why=f"This party's own file names another one; here is {found}.")
