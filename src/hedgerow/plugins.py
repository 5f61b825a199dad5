# SPDX-License-Identifier: Apache-2.0
"""Load what other packages add, on the word of whoever runs this process and of nobody else.

A plug-in is a module that calls one of the functions `add_...` when it is imported. It is named by an entry point of
the group `hedgerow.plugins`, as a module, or as a file. A module that a plan, a model or a peer names is never
imported. On one's own machine `--plugin` names it. A node or a coordinator loads the plug-ins of its own file, with the
version and the digest that its owner has read: the bytes that were hashed are the bytes that run. The digest does not
cover what those import, such as other packages and Python itself.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution, entry_points, packages_distributions, version
from importlib.util import decode_source
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, ModuleType

from hedgerow.errors import HedgerowError, UsageError

GROUP = "hedgerow.plugins"
UNCOVERED = "a digest covers a plug-in's own modules, and no other packages that they import"
"""Note for the owner of a policy about its line `plugins`."""
_COMPILED = (*BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)
_IMPORTED = (".py", *_COMPILED)


def load_plugin(name: str) -> ModuleType:
    """Import a plug-in: an entry point of `GROUP`, a module, or a file that ends in .py; only once.

    Raises:
        UsageError: code "plugin" if there is none of that name, "name-taken" if it adds a name that is taken.
    """
    return _load(next((entry.module for entry in entry_points(group=GROUP, name=name)), name))


def _load(name: str) -> ModuleType:
    """Import a module by its name or its file."""
    try:
        module = _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except HedgerowError:
        raise
    except (ModuleNotFoundError, FileNotFoundError) as absent:
        raise _refuse(name, f"It cannot be imported: {absent}.") from absent
    except Exception as fault:
        raise UsageError("plugin-failed", name=name, error=f"{type(fault).__name__}: {fault}") from fault
    module.__hedgerow_plugged__ = True  # type: ignore[attr-defined]
    return module


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module of its name, once."""
    name = path.stem
    if name in sys.modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").resolve() != path.resolve():
            raise _refuse(str(path), f"Another module is called {name}: rename the file.")
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(path)
    # Register the module before it runs, because its dataclasses look it up.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def explain_failed_plugin(error: BaseException) -> UsageError | None:
    """Return the error for a command in which a plug-in's own code has failed; None if none has."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        name = str(frame.f_globals.get("__name__"))
        if getattr(sys.modules.get(name.partition(".")[0]), "__hedgerow_plugged__", False):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
            return UsageError("plugin-failed", name=name, error=f"{place}: {type(error).__name__}: {error}")
    return None


def describe_plugin(module: ModuleType) -> str:
    """Return a policy's line for a plug-in: its module, its version, and the SHA-256 of its sources.

    Raises:
        UsageError: code "plugin"; no other process can load it, because it has no file or no name of its own, or
            something that `load_agreed` refuses.
    """
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    if top.__name__ == "__main__" or top.__file__ is None:
        raise _refuse(top.__name__, "No other process can load it: put it into a file.")
    loader = getattr(top, "__loader__", None)
    sources = loader if isinstance(loader, _Sources) else _read_sources(top.__name__, Path(top.__file__))
    return f"{module.__name__} {_version_of(module)} sha256:{sources.digest}"


def _refuse(name: str, why: str) -> UsageError:
    return UsageError("plugin", name=name, why=why)


def _version_of(module: ModuleType) -> str:
    """Return a module's own version, else its distribution's, else 0."""
    own = getattr(module, "__version__", None)
    if own is not None:
        return str(own)
    for named in packages_distributions().get(module.__name__.partition(".")[0], []):
        with suppress(PackageNotFoundError):
            return version(named)
    return "0"


class _Sources(InspectLoader):
    """A module or package that was read once. Its digest is of the very bytes that are compiled.

    Python's own loader would read a second time, follow links and additions to a package's `__path__`, and run compiled
    files beside sources. This loader looks for none of its modules on the disk.

    Args:
        files: the sources by their paths within the folder, in their order in the digest.
    """

    def __init__(self, name: str, folder: Path, files: Mapping[str, bytes]) -> None:
        self.name, self._folder, self._files = name, folder, files
        digest = hashlib.sha256()
        for path, content in files.items():
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        self.digest = digest.hexdigest()

    def find_spec(self, fullname: str) -> ModuleSpec:
        """Find a module among the sources that were read.

        Raises ModuleNotFoundError for any other module, so that no other finder is asked.
        """
        if (path := self._find_path(fullname)) is None:
            raise ModuleNotFoundError(f"No module named {fullname!r} in what was read of {self.name}", name=fullname)
        spec = ModuleSpec(
            fullname, self, origin=str(self._folder / path) if path else None, is_package=self._is_in(path)
        )
        spec.has_location = bool(path)
        return spec

    def _find_path(self, fullname: str) -> str | None:
        """Return the module's path; "" for a folder without an `__init__.py`, None if it is not there."""
        within = "/".join(fullname.split(".")[1:])
        first = f"{within}/__init__.py".lstrip("/")
        found = next((path for path in (first, f"{within or self.name}.py") if path in self._files), None)
        return "" if found is None and any(path.startswith(f"{within}/") for path in self._files) else found

    @staticmethod
    def _is_in(path: str) -> bool:
        return path.rpartition("/")[2] in ("", "__init__.py")

    def is_package(self, fullname: str) -> bool:
        """Return whether the name is that of a package."""
        return self._is_in(self._find_path(fullname) or "")

    def get_source(self, fullname: str) -> str:
        """Return the source that was read and hashed; tracebacks show it."""
        return decode_source(self._files.get(self._find_path(fullname) or "", b""))

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source that was read and hashed."""
        path = self._find_path(fullname) or ""
        # Do not use the file's own name: tools that keep compiled code beside a source, such as numba, would find it
        # there.
        return self.source_to_code(self._files.get(path, b""), f"<{self.name} {self.digest[:12]}>/{path}")


def _read_sources(name: str, place: Path) -> _Sources:
    """Read a module from its file, or all importable files of a package, once.

    Raises:
        UsageError: code "plugin"; one of the files is a link, or is compiled.
    """
    paths = [place] if place.name != "__init__.py" else []
    waiting = [] if paths else [place.parent]
    try:
        if place.is_symlink() or (waiting and place.parent.is_symlink()):
            raise _refuse(name, f"{place} is a link, which may lead elsewhere tomorrow: install the files themselves.")
        while waiting:
            for path in waiting.pop().iterdir():
                if path.name == "__pycache__":
                    # Skip it: nothing in it can be imported, because it is not read.
                    continue
                if path.is_dir() and not path.is_symlink():
                    waiting.append(path)
                elif path.is_dir() or path.name.endswith(_IMPORTED):
                    paths.append(path)
        for path in paths:
            if path.is_symlink() or not path.is_file():
                raise _refuse(name, f"{path} is a link, or no plain file: install the files themselves.")
            if path.name.endswith(_COMPILED):
                raise _refuse(name, f"{path} is compiled, and nobody can read it: a plug-in is sources alone.")
        read = {path.relative_to(place.parent).as_posix(): path.read_bytes() for path in sorted(paths)}
    except OSError as fault:
        raise _refuse(name, f"It cannot be read: {fault}.") from fault
    return _Sources(name, place.parent, read)


class _Agreed(MetaPathFinder):
    """Finds the modules of plug-ins from the sources that were read, and nowhere else.

    It also refuses an import by a plug-in's code of a module that is neither read with it nor another installed
    package's.
    """

    def __init__(self) -> None:
        self.sources = dict[str, _Sources]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a plug-in's module; refuse a module that no digest covers."""
        if (sources := self.sources.get(fullname.partition(".")[0])) is not None:
            return sources.find_spec(fullname)
        if "." not in fullname and (asking := _find_asking()) is not None:
            found = self.find_elsewhere(fullname)
            if found is not None and not _is_of_others(found, asking):
                why = f"It imports {fullname}, which its digest does not cover, and which is no other package's: name "
                raise _refuse(asking, f"{why}that in a line of its own, or have it within the plug-in's package.")
            return found
        return None

    def find_elsewhere(self, name: str) -> ModuleSpec | None:
        """Return what Python would import by this name otherwise, without importing it."""
        return next(
            filter(None, (finder.find_spec(name, None) for finder in sys.meta_path if finder is not self)), None
        )


def _find_asking() -> str | None:
    """Return the plug-in whose code asks for an import, however many other functions are in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(loader := frame.f_globals.get("__loader__"), _Sources):
            return loader.name
        frame = frame.f_back
    return None


def _is_of_others(spec: ModuleSpec, asking: str) -> bool:
    """Return whether a module is Python's own, or of another installed distribution than the plug-in."""
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    folders = {Path(place).resolve().parent for place in places}
    if not folders:
        return spec.origin in ("built-in", "frozen")
    if spec.name in sys.stdlib_module_names:
        own = [*map(sysconfig.get_path, ("stdlib", "platstdlib")), sysconfig.get_config_var("DESTSHARED")]
        known = {Path(place).resolve() for place in own if place}
        return folders <= known | {place / "lib-dynload" for place in known}
    by_module = packages_distributions()
    others = {*by_module.get(spec.name, [])}
    if not others.isdisjoint(by_module.get(asking, [])):
        return False
    return folders <= {Path(str(distribution(each).locate_file(""))).resolve() for each in others}


_AGREED = _Agreed()


def load_agreed(plugins: Iterable[str]) -> None:
    """Load the plug-ins that a policy names, each by its line from `describe_plugin`.

    Each plug-in is read once; the bytes that were read are compared by their digest, and run. No other file of that
    name is.

    Raises:
        UsageError: code "plugin"; a plug-in is missing, or differs from the policy's line; the line names no module; it
            holds a link or a compiled file; or it imports a module that is neither its own nor another package's.
    """
    lines = list(plugins)
    # Read all before loading any, because one of them may import another.
    read = {line: _read_agreed(line) for line in lines}
    for sources in read.values():
        _AGREED.sources[sources.name] = sources
    if read:
        with suppress(ValueError):
            sys.meta_path.remove(_AGREED)
        sys.meta_path.insert(0, _AGREED)
    for line in lines:
        name = line.partition(" ")[0]
        # Do not use `load_plugin`: an entry point of this name may lead to another module.
        if (found := describe_plugin(_load(name))) != line:
            raise _refuse(name, f"This party's own file names another one; here is {found}.")


_NAMED: dict[str, frozenset[str]] = {}


def require_still_named(party: str, plugins: Iterable[str]) -> None:
    """Require that a party's own file still names all plug-ins that it has named to this process.

    A process that stays reads the file again for its next run, and cannot unload what it runs.

    Args:
        party: the path of its identity.
        plugins: the lines that the file has now, once they are loaded.

    Raises:
        UsageError: code "plugin" until the file names it again, or another process reads the file.
    """
    lines = frozenset(plugins)
    if gone := _NAMED.get(party, lines) - lines:
        raise _refuse(min(gone).partition(" ")[0], "This party's own file names it no more: restart, to be without it.")
    _NAMED[party] = lines


def _read_agreed(line: str) -> _Sources:
    """Read the sources that a line names; raise as `load_agreed` does."""
    name = line.partition(" ")[0]
    top = name.partition(".")[0]
    if name.endswith(".py") or not all(map(str.isidentifier, name.split("."))):
        raise _refuse(name, "This party's own file has to name a module that is installed here, and no file.")
    loaded = [module for each, module in list(sys.modules.items()) if each.partition(".")[0] == top]
    loaders = [getattr(module, "__loader__", None) for module in loaded]
    sources = _AGREED.sources.get(top)
    if not loaders or any(loader is not sources for loader in loaders):
        if loaders:
            raise _refuse(name, "It was imported before its sources were compared: restart, and let the file load it.")
        # Look for the top package: finding a module inside it would import the package, unread.
        spec = _AGREED.find_elsewhere(top)
        if spec is None or spec.origin is None or not spec.has_location:
            raise _refuse(name, "It is named in this party's own file, and not installed here.")
        if type(spec.loader) is not SourceFileLoader or Path(spec.origin).name not in ("__init__.py", f"{top}.py"):
            raise _refuse(name, f"{spec.origin} is no plain file of sources.")
        sources = _read_sources(top, Path(spec.origin))
    if sources is None or sources.digest != line.rpartition("sha256:")[2]:
        raise _refuse(name, "Its sources are not those that this party's own file names.")
    return sources
