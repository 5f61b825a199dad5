"""Of a plug-in that a policy names, the bytes that run are those whose digest was compared, or none."""

from __future__ import annotations

import builtins
import importlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow import plugins
from hedgerow.errors import UsageError
from hedgerow.plugins import describe_plugin, load_agreed
from tests.builders import coded

NAME, BESIDE, ELSEWHERE = "plugged", "plugged_beside", "plugged_elsewhere"
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a finder of its own, and the paths and modules as they were."""
    own = plugins._Agreed()
    monkeypatch.setattr(plugins, "_AGREED", own)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, plugins._Agreed)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(builtins, "plugged_runs", [], raising=False)


@dataclass
class Layout:
    """A plug-in in a folder, and what is done to it.

    Attributes:
        is_package: else a file.
        modules: of the package, by their paths.
        imports: whether the plug-in's own code asks for each module, and for those that are not its own.
        tricks: what happens to the folder, by name; each before the policy is read, or while the plug-in is imported.
    """

    is_package: bool
    modules: list[str]
    imports: bool
    tricks: list[tuple[str, str]] = field(default_factory=list)


TRICKS = {
    "change", "add", "link-file", "link-folder", "path", "sys-path", "beside", "shadow", "shadow-package", "compiled",
    "compiled-beside", "distribution",
}  # fmt: skip
LAYOUTS = st.builds(
    Layout,
    st.booleans(),
    st.lists(st.sampled_from(["more.py", "part/__init__.py", "part/deep.py", "loose/module.py"]), unique=True),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(TRICKS)), st.sampled_from(["before", "during"])), max_size=3),
)


def mark(text: str = "") -> str:
    """Code that says that it ran, unlike any other."""
    return f"import builtins; builtins.plugged_runs.append({next(_NUMBERS)})\n{text}"


def write(path: Path, text: str) -> str:
    """A file of code, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return text


def play(trick: str, site: Path, root: Path) -> str:
    """What somebody does who can write to the folder; the code that the plug-in's author would add to it."""
    package, other = site / NAME, root / "other"
    place = package if package.is_dir() else site
    if trick == "change":
        write(next(iter(sorted(place.rglob("*.py")))), mark())
    elif trick == "add" and package.is_dir():
        write(package / "more.py", mark())
    elif trick == "link-file" and package.is_dir():
        write(other / "code.py", mark())
        (package / "more.py").unlink(missing_ok=True)
        (package / "more.py").symlink_to(other / "code.py")
    elif trick == "link-folder" and package.is_dir() and not (package / "linked").exists():
        write(other / "sub" / "__init__.py", mark())
        (package / "linked").symlink_to(other / "sub", target_is_directory=True)
    elif trick == "path":
        write(other / "hidden.py", mark())
        return f"__path__ = [*globals().get('__path__', []), {str(other)!r}]\n"
    elif trick == "sys-path":
        write(other / f"{ELSEWHERE}.py", mark())
        return f"import sys; sys.path.insert(0, {str(other)!r})\n"
    elif trick == "beside":
        write(site / f"{BESIDE}.py", mark())
    elif trick == "distribution":
        write(site / f"{BESIDE}.py", mark())
        folder = site / "plugged-1.dist-info"
        write(folder / "METADATA", "Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
        write(folder / "top_level.txt", f"{NAME}\n{BESIDE}\n")
    elif trick == "shadow":
        write(root / "first" / f"{NAME}.py", mark())
    elif trick == "shadow-package":
        write(root / "first" / NAME / "__init__.py", mark())
    elif trick == "compiled" and package.is_dir():
        write(package / "more.pyc", "no code")
    elif trick == "compiled-beside":
        write(place / "__pycache__" / "inner.py", mark())
    return ""


WANTED = (
    f"{NAME}.more", f"{NAME}.part.deep", f"{NAME}.loose.module", f"{NAME}.linked", f"{NAME}.hidden",
    f"{NAME}.__pycache__.inner", BESIDE, ELSEWHERE,
)  # fmt: skip
ASK = f"""
import importlib
for wanted in {WANTED!r}:
    try:
        importlib.import_module(wanted)
    except ImportError:
        pass
"""


def hash_now(site: Path) -> tuple[str, set[int]]:
    """The digest of the folder as its owner reads it, links left out, and the marks of all code in it."""
    found = sha256()
    folder = site / NAME if (site / NAME).is_dir() else site
    files = sorted(folder.rglob("*.py")) if folder != site else [site / f"{NAME}.py"]
    marks = set[int]()
    for file in files:
        if not file.is_symlink() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            found.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
            marks.add(int(content.split(b"append(")[1].split(b")")[0]))
    return found.hexdigest(), marks


def forget() -> None:
    """As a process that has imported none of them."""
    for each in [name for name in sys.modules if name.partition(".")[0].startswith(NAME)]:
        del sys.modules[each]
    plugins._AGREED.sources.clear()
    importlib.invalidate_caches()


@pytest.fixture
def runs() -> Iterator[list[int]]:
    """The marks of what ran; nothing of a plug-in is left afterwards."""
    yield builtins.plugged_runs  # type: ignore[attr-defined]
    forget()


@pytest.mark.usefixtures("runs")
@given(LAYOUTS)
def test_what_runs_is_what_was_hashed_or_nothing(layout: Layout) -> None:
    """Whatever links, shadows, folders on a path and changes there are, before the import and in the midst of it: the
    digest that is compared is that of all code that a plug-in's name brings to run.
    """
    check(layout)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("trick", sorted(TRICKS))
def test_no_trick_by_itself_brings_other_code_to_run(trick: str) -> None:
    """Each of them, before and in the midst of the import, to a file and to a package that asks for all or nothing."""
    for is_package, imports, when in itertools.product((False, True), (False, True), ("before", "during")):
        check(Layout(is_package, ["part/deep.py", "part/__init__.py"], imports, [(trick, when)]))


def check(layout: Layout) -> None:
    """Load a layout as a policy's plug-in, and look at what has run."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        site, runs = root / "site", list[int]()
        builtins.plugged_runs = runs  # type: ignore[attr-defined]
        path = sys.path[:]
        sys.path[:0] = [str(root / "first"), str(site)]
        try:
            forget()
            first = site / NAME / "__init__.py" if layout.is_package else site / f"{NAME}.py"
            said = ["__version__ = '1'\n"]
            # While it is imported, its own first line hands over to whoever changes the folder.
            during = [trick for trick, when in layout.tricks if when == "during"]
            builtins.plugged_now = lambda: [play(each, site, root) for each in during]  # type: ignore[attr-defined]
            said.append("import builtins; builtins.plugged_now()\n")
            for trick in ("path", "sys-path"):
                if trick in [each for each, _ in layout.tricks]:
                    said.append(play(trick, site, root))
            for module in layout.modules if layout.is_package else []:
                write(site / NAME / module, mark())
            write(first, mark("".join(said) + (ASK if layout.imports else "")))
            digest, marks = hash_now(site)
            for trick, when in layout.tricks:
                if when == "before":
                    play(trick, site, root)
            importlib.invalidate_caches()
            try:
                load_agreed([f"{NAME} 1 sha256:{digest}"])
            except UsageError as fault:
                assert fault.code == "plugin"
            else:
                # Later as well: what its name brings is what was read.
                for wanted in WANTED[:-2]:
                    with suppress(ImportError):
                        importlib.import_module(wanted)
                assert runs, "the plug-in itself ran"
            assert set(runs) <= marks
        finally:
            forget()
            sys.path[:] = path


def test_what_is_unchanged_runs_whole(tmp_path: Path, runs: list[int]) -> None:
    """A package with parts, folders without an `__init__.py` and a traceback of its own loads as by any import."""
    sys.path.insert(0, str(tmp_path))
    write(
        tmp_path / NAME / "__init__.py",
        mark(f"__version__ = '2'\nfrom {NAME}.loose import module\nfrom . import more\n"),
    )
    write(tmp_path / NAME / "more.py", mark("def fail():\n    raise KeyError(1)\n"))
    write(tmp_path / NAME / "loose" / "module.py", mark())
    digest, marks = hash_now(tmp_path)
    line = f"{NAME} 2 sha256:{digest}"
    load_agreed([line])
    # A second policy of the same process finds what runs already.
    load_agreed([line])
    assert set(runs) == marks and len(runs) == 3
    module = sys.modules[NAME]
    assert describe_plugin(module) == line
    with pytest.raises(KeyError) as failed:
        module.more.fail()
    assert failed.traceback[-1].lineno == 2 and "more.py" in str(failed.traceback[-1].frame.code.raw.co_filename)


@pytest.mark.parametrize("name", ["antigravity.py", f"{NAME}.py", "./x", "x/y", "../x", f"{NAME}..more", "a-b", ""])
def test_a_policy_names_modules_and_no_files(
    name: str, tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file the digest would be another file's: the working folder's is not looked at, though the digest is that
    of what is installed.
    """
    sys.path.insert(0, str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    top = name.partition(".")[0] or NAME
    write(tmp_path / "site" / f"{NAME}.py", mark("__version__ = '1'\n"))
    write(tmp_path / "site" / top / "__init__.py", mark("__version__ = '1'\n"))
    write(tmp_path / name if name.endswith(".py") else tmp_path / f"{NAME}.py", mark("__version__ = '1'\n"))
    digest = plugins._read_sources(top, tmp_path / "site" / top / "__init__.py").digest
    for each in (digest, hash_now(tmp_path)[0] if name == f"{NAME}.py" else "0" * 64):
        with pytest.raises(UsageError, check=coded("plugin")):
            load_agreed([f"{name} 1 sha256:{each}"])
        assert runs == []


@pytest.mark.parametrize("name", ["this", "turtle", "idlelib", "winreg"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_name_of_pythons_own_covers_no_other_file(
    name: str, is_package: bool, tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies on the path under it is not Python's; the plug-in that asks for it is refused, and it does not run."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    sys.path.insert(0, str(tmp_path))
    write(tmp_path / f"{NAME}.py", mark(f"__version__ = '1'\nimport {name}\n"))
    write(tmp_path / (f"{name}/__init__.py" if is_package else f"{name}.py"), mark())
    digest, marks = hash_now(tmp_path)
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([f"{NAME} 1 sha256:{digest}"])
    assert set(runs) == marks and name not in sys.modules


class _Nowhere(MetaPathFinder):
    """Finds a module that is in no file."""

    def __init__(self) -> None:
        self.n_run = 0

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, origin="a name") if fullname == ELSEWHERE else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Python makes it."""

    def exec_module(self, module: ModuleType) -> None:
        self.n_run += 1


def test_a_module_of_no_file_is_refused(tmp_path: Path, runs: list[int]) -> None:
    """What another finder makes up is in no digest, and in no package."""
    sys.path.insert(0, str(tmp_path))
    nowhere = _Nowhere()
    sys.meta_path.append(nowhere)
    write(tmp_path / f"{NAME}.py", mark(f"__version__ = '1'\nimport {ELSEWHERE}\n"))
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([f"{NAME} 1 sha256:{hash_now(tmp_path)[0]}"])
    assert len(runs) == 1 and nowhere.n_run == 0


def test_what_was_imported_before_it_was_compared_is_refused(tmp_path: Path, runs: list[int]) -> None:
    """Nobody knows of which bytes it runs."""
    sys.path.insert(0, str(tmp_path))
    write(tmp_path / f"{NAME}.py", mark("__version__ = '1'\n"))
    line = describe_plugin(importlib.import_module(NAME))
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([line])
    forget()
    load_agreed([line])
    # What runs stays what was read: another line is another plug-in, whatever the disk holds now.
    write(tmp_path / f"{NAME}.py", mark("__version__ = '1'\n"))
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([f"{NAME} 1 sha256:{hash_now(tmp_path)[0]}"])


def test_a_helper_is_in_a_line_of_its_own_or_refused(tmp_path: Path, runs: list[int]) -> None:
    """Another module at the top, of the same distribution or of none, is no dependency; with its own line it loads,
    in whatever order the lines stand.
    """
    sys.path.insert(0, str(tmp_path))
    write(tmp_path / f"{NAME}.py", mark(f"__version__ = '1'\nimport {BESIDE}\n"))
    write(tmp_path / f"{BESIDE}.py", mark("__version__ = '1'\n"))
    lines = [describe_plugin(fake(tmp_path, name)) for name in (NAME, BESIDE)]
    for installed in (False, True):
        if installed:
            play("distribution", tmp_path, tmp_path)
            lines[1] = describe_plugin(fake(tmp_path, BESIDE))
        with pytest.raises(UsageError, check=coded("plugin")):
            load_agreed(lines[:1])
        forget()
        runs.clear()
        load_agreed(lines)
        assert len(runs) == 2
        forget()


def fake(folder: Path, name: str) -> ModuleType:
    """A module that is not imported, to be described."""
    module = ModuleType(name)
    module.__file__, module.__version__ = str(folder / f"{name}.py"), "1"  # type: ignore[attr-defined]
    return module


def test_another_installed_package_is_a_dependency_and_no_other_of_its_name(tmp_path: Path, runs: list[int]) -> None:
    """What has metadata is imported from where those are; what lies before it on the path under its name is not."""
    site, before = tmp_path / "site", tmp_path / "before"
    sys.path[:0] = [str(before), str(site)]
    write(site / f"{NAME}.py", mark(f"__version__ = '1'\nimport {ELSEWHERE}\nimport antigravity_of_nobody\n"))
    write(site / "antigravity_of_nobody.py", "")
    for name in (ELSEWHERE, "antigravity_of_nobody"):
        write(site / f"{name}-1.dist-info" / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        write(site / f"{name}-1.dist-info" / "top_level.txt", f"{name}\n")
    write(site / f"{ELSEWHERE}.py", mark())
    line = describe_plugin(fake(site, NAME))
    load_agreed([line])
    assert len(runs) == 2
    forget()
    runs.clear()
    write(before / f"{ELSEWHERE}.py", mark())
    importlib.invalidate_caches()
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([line])
    assert len(runs) == 1


@pytest.mark.usefixtures("runs")
@given(st.data())
def test_no_other_line_stands_for_a_plug_in(data: st.DataObject) -> None:
    """A policy's line is the one that its owner read, in all its words: with another version, name or digest, or with
    one character more, less or changed, it is refused, though the sources are those of its digest.
    """
    with tempfile.TemporaryDirectory() as made:
        path = sys.path[:]
        sys.path.insert(0, made)
        builtins.plugged_runs = []  # type: ignore[attr-defined]
        try:
            forget()
            write(Path(made) / NAME / "__init__.py", "__version__ = '1.2'\n")
            write(Path(made) / NAME / "more.py", "__version__ = '1.3'\n")
            name, version, digest = describe_plugin(fake_package(Path(made), "1.2")).split(" ")
            words = st.sampled_from([name, version, digest, f"{name}.more", "1.3", "0", "1", digest.upper(), ""])
            cut = st.integers(0, len(f"{name} {version} {digest}"))
            line = f"{name} {version} {digest}"
            other = data.draw(
                st.one_of(
                    st.lists(words, min_size=1, max_size=4).map(" ".join),
                    st.builds(
                        lambda at, gone, more: line[:at] + more + line[at + gone :],
                        cut, st.integers(0, 2), st.text(" .:_012abcfs", max_size=2),
                    ),
                )
            )  # fmt: skip
            importlib.invalidate_caches()
            if other == line or other == f"{name}.more 1.3 {digest}":
                load_agreed([other])
            else:
                with pytest.raises(UsageError, check=coded("plugin")):
                    load_agreed([other])
        finally:
            forget()
            sys.path[:] = path


def fake_package(folder: Path, version: str) -> ModuleType:
    """A package that is not imported, to be described."""
    module = ModuleType(NAME)
    module.__file__, module.__version__ = str(folder / NAME / "__init__.py"), version  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("kind", ["file", "folder", "package", "module", "compiled", "pipe"])
def test_what_a_digest_could_not_hold_is_not_even_described(kind: str, tmp_path: Path, runs: list[int]) -> None:
    """A link leads elsewhere tomorrow, and nobody reads compiled code: neither can be agreed to."""
    other, site = tmp_path / "other", tmp_path / "site"
    write(other / NAME / "__init__.py", mark())
    site.mkdir()
    if kind == "package":
        (site / NAME).symlink_to(other / NAME, target_is_directory=True)
    elif kind == "module":
        (site / f"{NAME}.py").symlink_to(other / NAME / "__init__.py")
    else:
        write(site / NAME / "__init__.py", mark())
        if kind == "pipe":
            os.mkfifo(site / NAME / "more.py")
        elif kind == "compiled":
            write(site / NAME / "more.so", "")
        else:
            linked = other / NAME if kind == "folder" else other / NAME / "__init__.py"
            (site / NAME / ("more" if kind == "folder" else "more.py")).symlink_to(linked)
    module = ModuleType(NAME)
    module.__file__ = str(site / f"{NAME}.py" if kind == "module" else site / NAME / "__init__.py")
    with pytest.raises(UsageError, check=coded("plugin")):
        describe_plugin(module)
    sys.path.insert(0, str(site))
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([f"{NAME} 0 sha256:{hash_now(other)[0]}"])
    assert runs == []
