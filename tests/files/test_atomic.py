"""Atomic writing: killed writers, full disks, concurrent writers, file modes."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from regard.errors import SaveError
from regard.files.atomic import PARTIAL_SUFFIX, atomic_file, write_text
from regard.files.lock import try_lock
from regard.plot.svg_and_text import Svg


def partial_files(folder: Path) -> list[Path]:
    return list(folder.glob(f".*{PARTIAL_SUFFIX}"))


def test_failed_block_leaves_only_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with atomic_file(path) as file:
            file.write(b"new")
            assert path.read_text() == "old" and len(partial_files(tmp_path)) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_file_keeps_its_mode_and_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
        private, shared = tmp_path / "private", tmp_path / "shared"
        private.touch(0o600)
        shared.touch()
        shared.chmod(0o666)  # more than the umask allows
        for path in (private, shared):
            write_text(path, "x")
            Svg("<svg/>").save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.stat().st_mode) == 0o666


def test_private_file_stays_private_while_it_is_rewritten(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.touch(0o600)
    with atomic_file(private):
        assert [stat.S_IMODE(p.stat().st_mode) for p in partial_files(tmp_path)] == [0o600]


def test_umask_of_the_process_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("other threads would create files with this umask"))
    write_text(tmp_path / "x", "x")


def test_next_writer_removes_the_partial_file_of_a_killed_writer(tmp_path: Path) -> None:
    program = f"""
import os, signal
from regard.files.atomic import atomic_file
with atomic_file({str(tmp_path / "x")!r}) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(partial_files(tmp_path)) == 1 and not (tmp_path / "x").exists()
    with atomic_file(tmp_path / "y"):
        assert [path.name[:3] for path in partial_files(tmp_path)] == [".y."]
    assert list(tmp_path.iterdir()) == [tmp_path / "y"]


def test_partial_file_of_a_running_writer_is_not_removed(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "x") as file:
        write_text(tmp_path / "y", "y")
        file.write(b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_concurrent_writers_never_expose_a_partial_file(tmp_path: Path) -> None:
    path, texts = tmp_path / "x", [letter * 50_000 for letter in "abcd"]
    write_text(path, texts[0])
    errors: list[BaseException] = []

    def work(text: str) -> None:
        try:
            for _ in range(15):
                write_text(path, text)
                assert path.read_text() in texts
        except BaseException as error:  # asserted below, in the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        steps.append(
            "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else f"file of {os.fstat(descriptor).st_size}"
        )
        fsync(descriptor)

    def recorded_replace(old: Path, new: Path) -> None:
        steps.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_text(tmp_path / "x", "four")
    assert steps == ["file of 4", "rename", "folder"]


def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "x"


def test_devices_are_written_directly(tmp_path: Path) -> None:
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_raises_save_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"^/dev/full must be a file that can be written; got: No space left on device"):
        write_text("/dev/full", "x")
    missing = tmp_path / "no" / "x"
    with pytest.raises(SaveError, match=r"no/x must be a file that can be written; got: No such file or directory"):
        write_text(missing, "x")


def test_lock_is_held_by_one_file_object(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as first, (tmp_path / "x").open("rb") as second:
        assert try_lock(first) and not try_lock(second)
