"""Files are whole or not there, and what is no file of ours gives one sentence."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import socket
import stat
from pathlib import Path

import pytest

from autorecall.errors import AutorecallError, ConfigError, DataError
from autorecall.storage.files import (
    LARGEST_JSON,
    append_to,
    make_folder,
    move_aside,
    place_to_write,
    put_aside,
    read_json,
    write_json,
    write_text,
)
from autorecall.storage.state_file import read_state

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def always_raising(error: OSError) -> object:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Writing


@pytest.mark.parametrize("text", ["", "plain\n", "two\nlines\r\n", "λ, η and ×"])
def test_text_is_written_as_it_is_and_nothing_else_is_left(tmp_path: Path, text: str) -> None:
    write_text(tmp_path / "file.txt", text)
    assert (tmp_path / "file.txt").read_bytes() == text.encode()
    assert names(tmp_path) == {"file.txt"}


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("a longer old text")
    write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "file.txt").read_text() == "new"


def test_a_file_that_a_person_names_goes_where_a_link_leads_and_to_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.csv")
    assert place_to_write(tmp_path / "link") == (tmp_path / "real.csv").resolve()
    assert place_to_write(tmp_path / "new.csv") == tmp_path / "new.csv"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("nowhere/real.csv")
    (tmp_path / "to-pipe").symlink_to("pipe")
    for name, sentence in (
        ("pipe", "pipe is a pipe; give the name of a file to write"),
        ("to-pipe", "to-pipe is a pipe"),
        (".", "is a folder"),
        ("loop", "loop: Too many levels of symbolic links; give the name of a file"),
        ("nowhere/new.csv", "nowhere/new.csv: there is no folder .*nowhere; make it, or give another name"),
        ("astray", "astray: there is no folder .*nowhere; make it"),
        ("pipe/new.csv", "new.csv: Not a directory; give the name of a file"),
        ("\0", "null"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            place_to_write(tmp_path / name)


def test_json_is_readable_text_that_comes_back(tmp_path: Path) -> None:
    value = {"name": "größe", "numbers": [1, 2.5, None], "inner": {"yes": True}}
    write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert "größe" in text
    assert text.endswith("}\n")
    assert read_json(tmp_path / "file.json") == value


@pytest.mark.parametrize("old", [None, "old"], ids=["new file", "old file"])
@pytest.mark.parametrize("error", [FULL, DENIED], ids=["disk full", "denied"])
@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace", "os.open"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: OSError, old: str | None
) -> None:
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)
    with monkeypatch.context() as patched:
        patched.setattr(place, always_raising(error))
        with pytest.raises(AutorecallError) as caught:
            write_text(path, "new")
    assert str(caught.value) == f"cannot write {path}: {error.strerror}; check the folder and the free space"
    assert names(tmp_path) == ({"file.txt"} if old is not None else set())
    assert old is None or path.read_text() == old


def test_a_file_that_must_not_grow_is_noticed_while_writing(tmp_path: Path) -> None:
    """As on a full disk, for real: the system refuses to write more than ten bytes."""
    found = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, found[1]))
    try:
        with pytest.raises(AutorecallError, match="File too large; check the folder and the free space"):
            write_text(tmp_path / "file.txt", "more than ten bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, found)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("left", ["file", "link"])
def test_what_an_earlier_process_of_this_number_left_is_removed_and_not_written_to(tmp_path: Path, left: str) -> None:
    (tmp_path / "precious").write_text("old")
    aside = tmp_path / f".file.txt.{os.getpid()}.tmp"
    aside.write_text("half") if left == "file" else aside.symlink_to(tmp_path / "precious")
    write_text(tmp_path / "file.txt", "new")
    assert names(tmp_path) == {"file.txt", "precious"}
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "file.txt").read_text() == "new"


def test_a_file_is_on_the_disk_before_its_name_is_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noted_sync(opened: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(opened).st_mode) else "file")
        sync(opened)

    def noted_rename(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    write_text(tmp_path / "file.txt", "new")
    assert done == ["file", "rename", "folder"]


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "file.txt").write_text("old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "file.txt", "new")
    assert names(tmp_path) == {"file.txt"}
    assert (tmp_path / "file.txt").read_text() == "old"


@pytest.mark.parametrize("value", [math.nan, math.inf, {"inner": [math.nan]}])
def test_what_json_cannot_say_is_not_written(tmp_path: Path, value: object) -> None:
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"value": value})
    assert names(tmp_path) == {"file.json"}
    assert (tmp_path / "file.json").read_text() == "{}"


# Reading


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", "is not valid JSON"),
        (b'{"seed": 1', "is not valid JSON"),
        (b"{'seed': 1}", "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "is not valid JSON"),
        (b"[1, 2]", "holds a list; expected a JSON object"),
        (b'"text"', "holds a str; expected a JSON object"),
        (b"null", "holds a NoneType; expected a JSON object"),
        (b"1", "holds a int; expected a JSON object"),
    ],
    ids=["empty", "cut off", "quotes", "bytes", "long number", "nested lists", "nested", "list", "str", "null", "int"],
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, content: bytes, trouble: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} {trouble}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_far_larger_than_ours_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"{}")
    os.truncate(path, LARGEST_JSON + 1)
    with pytest.raises(DataError, match=r"is larger than 64 MiB; that is not a file of autorecall$"):
        read_json(path)


def test_a_file_of_the_largest_size_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"a": 1}))
    monkeypatch.setattr("autorecall.storage.files.LARGEST_JSON", path.stat().st_size)
    assert read_json(path) == {"a": 1}


def make_irregular(path: Path, kind: str) -> None:
    """Something under a name where a file belongs; nobody writes to the pipe."""
    match kind:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(os.path.relpath(path))  # of few characters, as the system wants it
        case "a device":
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # endless zeros
            except PermissionError:
                pytest.skip("only root makes devices")
        case "a symbolic link":
            path.with_name("elsewhere").write_text("{}")
            path.symlink_to(path.with_name("elsewhere"))


IRREGULAR = ["a folder", "a pipe", "a socket", "a device", "a symbolic link"]


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file.json"
    make_irregular(path, kind)
    for read in (read_json, read_state):
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value) == f"{path} is {kind}, not a regular file; check the path"


def test_a_link_is_followed_where_that_is_asked_for_but_not_to_a_pipe(tmp_path: Path) -> None:
    make_irregular(tmp_path / "link", "a symbolic link")
    assert read_json(tmp_path / "link", links=True) == {}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to a pipe").symlink_to(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe, not a regular file"):
        read_json(tmp_path / "to a pipe", links=True)


def test_a_name_that_becomes_a_pipe_while_it_is_looked_at_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "file.json", os.lstat
    path.write_text("{}")

    def replaced(seen: Path) -> os.stat_result:
        found = real(seen)
        path.unlink()
        os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "lstat", replaced)
    with pytest.raises(DataError, match="is a pipe, not a regular file"):
        read_json(path)


@pytest.mark.parametrize("name", ["gone.json", "a" * 300, "null\0"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"(^cannot read .*; check the path|has a null character.*; give another)$"):
        read_json(tmp_path / name)


# Appending


def test_a_file_is_cut_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size, text, expected in ((0, b"abc", b"abc"), (2, b"xy", b"abxy"), (4, b"", b"abxy"), (0, b"z", b"z")):
        with append_to(path, size) as file:
            file.write(text)
        assert path.read_bytes() == expected


@pytest.mark.parametrize("kind", IRREGULAR[1:])
def test_only_a_regular_file_is_appended_to(tmp_path: Path, kind: str) -> None:
    make_irregular(tmp_path / "file", kind)
    with pytest.raises((DataError, OSError)):
        append_to(tmp_path / "file", 0)
    if kind == "a symbolic link":
        assert (tmp_path / "elsewhere").read_text() == "{}"


def test_damaged_files_are_put_aside_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (1, 2):
        path.write_text(str(number))
        assert put_aside(path) == f"; it is file.damaged-{number} now"
    assert put_aside(path) == ""
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == {
        "file.damaged-1": "1",
        "file.damaged-2": "2",
    }


# Folders


def test_a_folder_is_made_with_its_parents_or_taken_as_it_is(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "kept").touch()
    make_folder(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == {"kept"}


@pytest.mark.parametrize("below", ["", "inner"])
def test_a_file_in_the_way_of_a_folder_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AutorecallError, match=r"^cannot create the folder .*; choose another$"):
        make_folder(tmp_path / "file" / below)
    assert (tmp_path / "file").is_file()


@pytest.mark.parametrize("error", [DENIED, FULL])
def test_a_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    monkeypatch.setattr(Path, "mkdir", always_raising(error))
    with pytest.raises(AutorecallError, match=rf"^cannot create the folder .*: {error.strerror}; choose another"):
        make_folder(tmp_path / "a")


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, mode: int) -> bool:
        return not mode & os.W_OK

    monkeypatch.setattr(os, "access", read_only)  # tests may run as root, to whom every folder is open
    with pytest.raises(AutorecallError, match=r"^cannot write to the folder .*: permission denied; choose another"):
        make_folder(tmp_path)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
@pytest.mark.parametrize("place", ["open", "fsync"])
def test_a_folder_that_cannot_be_synced_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, code: int
) -> None:
    real = getattr(os, place)

    def refusing(what: Path | int, *rest: int) -> object:
        if stat.S_ISDIR(os.fstat(what).st_mode) if isinstance(what, int) else what.is_dir():
            raise OSError(code, os.strerror(code))
        return real(what, *rest)

    monkeypatch.setattr(os, place, refusing)
    write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "file.txt").read_text() == "new"


def test_new_and_moved_folders_are_made_to_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("autorecall.storage.files.sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path / "a", tmp_path]
    make_folder(tmp_path / "a" / "b")
    move_aside(tmp_path / "a")
    assert synced[2:] == [tmp_path]


def test_a_folder_is_moved_to_the_first_free_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / str(number)).touch()
        assert move_aside(tmp_path / "run") == tmp_path / f"run.old-{number}"
        assert names(tmp_path / f"run.old-{number}") == {str(number)}
    assert names(tmp_path) == {"run.old-1", "run.old-2"}


def test_a_folder_that_cannot_be_moved_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", always_raising(DENIED))
    with pytest.raises(AutorecallError, match=r"^cannot move .* aside: Permission denied; move it yourself$"):
        move_aside(tmp_path)
