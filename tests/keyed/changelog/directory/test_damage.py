"""Files of a log are cut, flipped, zeroed, exchanged, read short: the last whole commit, or an error with its place."""

import os
import shutil
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from keyed.errors import ChangelogError, CorruptionError
from keyed.testing.changelog_conformance import state_of
from tests.keyed.changelog.directory.support import blocks_of, check, check_reader, compact_all, files_of, made

TAIL = 64 << 10


@pytest.mark.slow
@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.long)])
def test_cut_at_every_byte_of_its_last_64_kib(tmp_path, step):
    changelog, sample = made(tmp_path, 10, 700, 1, 0, 700, 30, 700, keys=400)
    segments = files_of(changelog)
    assert sum(path.stat().st_size for path in segments[1:]) > TAIL
    left = TAIL
    for whole, path in reversed(list(enumerate(segments))):
        full = path.stat().st_size
        near = {*range(64), *range(full - 300, full)}
        for size in reversed(range(max(0, full - left), full)):
            if size % step == 0 or size in near:
                os.truncate(path, size)
                last = changelog.reader(0).last()
                assert (0 if last is None else last.sequence) == whole
        left -= full
        assert check(changelog, sample) == whole
        path.unlink()
        if left <= 0:
            break
    assert left <= 0


@pytest.mark.slow
def test_after_any_cut_the_writer_goes_on(tmp_path):
    changelog, sample = made(tmp_path, 10, 3)
    _, path = files_of(changelog)
    data, blocks = path.read_bytes(), blocks_of(changelog, 2)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        writer = changelog.writer(0)
        assert writer.last().sequence == 1
        writer.append(sample.last, blocks)
        assert check(changelog, sample) == changelog.writer(0).last().sequence == 2
        (again,) = set(files_of(changelog)) - {*files_of(changelog)[:1], path}
        again.unlink()


def test_a_second_cut_is_written_over_too(tmp_path):
    changelog, sample = made(tmp_path, 10, 3)
    _, path = files_of(changelog)
    blocks = blocks_of(changelog, 2)
    for again in (path, path.with_name(f"{path.stem}-1.segment"), path.with_name(f"{path.stem}-2.segment")):
        os.truncate(again, 100)
        changelog.writer(0).append(sample.last, blocks)
    changelog.writer(0).append(*sample.commit())
    assert check(changelog, sample) == 3
    compact_all(changelog, sample)
    assert len(files_of(changelog)) == 1
    assert state_of(changelog.reader(0)) == sample.state


def test_a_snapshot_may_follow_a_torn_segment_and_a_commit_may_not(tmp_path):
    changelog, sample = made(tmp_path, 10, 3, 5)
    *_, path = files_of(changelog)
    os.truncate(path, 100)
    writer = changelog.writer(0)
    writer.append(*sample.snapshot())
    writer.append(*sample.commit())
    assert check(changelog, sample) == 5
    os.truncate(files_of(changelog)[3], 100)
    with pytest.raises(CorruptionError, match=r"0003\.segment"):
        list(changelog.reader(0).commits())
    changelog.writer(0).append(*sample.commit())
    with pytest.raises(CorruptionError, match=r"0003\.segment"):
        changelog.compact()


#: The kind of file, its place, and the last whole commits after a flip: one in a length of the last file may look like
#: a file that is cut short.
FLIPPED = [("segment", -1, {None, 2}), ("segment", 1, {None}), ("base", -1, {None})]


@pytest.mark.parametrize(("kind", "place", "commits"), FLIPPED)
def test_any_bit_of_a_record_flipped(tmp_path, kind, place, commits):
    changelog, sample = made(tmp_path, 10, 4, 2)
    if kind == "base":
        compact_all(changelog, sample)
    path = files_of(changelog, kind)[place]
    data = path.read_bytes()
    found = set()
    # Each bit of a byte comes in turn.
    for bit in range(0, 8 * len(data), 11 if kind == "base" else 5):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found.add(check(changelog, sample))
    assert found == commits


@pytest.mark.parametrize("block", [64, 512, 4096])
def test_zeros_where_the_disk_wrote_nothing(tmp_path, block):
    changelog, sample = made(tmp_path, 10, 700, 700, keys=400)
    path = files_of(changelog)[-1]
    data = path.read_bytes()
    for start in range(0, len(data), block):
        path.write_bytes(data[:start] + bytes(len(data) - start))
        # Zeros to the end are a torn tail, unless just the end has some.
        assert check(changelog, sample) in ((2,) if start + 33 <= len(data) else (2, None))
        path.write_bytes(data[:start] + bytes(block) + data[start + block :])
        assert check(changelog, sample) in (None, 2, 3 if data[start : start + block].count(0) == block else 2)


def test_blocks_exchanged_repeated_and_lost(tmp_path):
    changelog, sample = made(tmp_path, 60)
    (path,) = files_of(changelog)
    data = path.read_bytes()
    starts = [at for at in range(len(data)) if data[at : at + 4] in (b"KCLB", b"KCLC", b"KCLE")]
    frames = [data[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    number = Random(3)
    blocks, rest = frames[:-2], frames[-2:]
    assert len(blocks) > 3
    for _ in range(200):
        changed = list(blocks)
        match number.randrange(3):
            case 0:
                number.shuffle(changed)
            case 1:
                changed.insert(number.randrange(len(changed)), number.choice(changed))
            case 2:
                del changed[number.randrange(len(changed))]
        if changed != blocks:
            path.write_bytes(b"".join([*changed, *rest]))
            assert check(changelog, sample) is None


def test_files_exchanged_and_lost(tmp_path):
    changelog, sample = made(tmp_path, 10, 4, 3, 5, 6)
    before = tmp_path / "before"
    shutil.copytree(changelog.path, before)
    for first in range(5):
        for second in range(5):
            names = files_of(changelog)
            contents = [path.read_bytes() for path in names]
            if first != second:
                names[first].write_bytes(contents[second])
                assert check(changelog, sample) is None
            else:
                names[first].unlink()
                assert check(changelog, sample) == (4 if first == 4 else None)
            shutil.rmtree(changelog.path)
            shutil.copytree(before, changelog.path)


def test_files_of_another_log_or_group(tmp_path):
    changelog, sample = made(tmp_path / "one", 10, 4)
    other, _ = made(tmp_path / "two", 10, 4)
    shutil.copy(files_of(other)[1], files_of(changelog)[1])
    assert check(changelog, sample) is None
    with pytest.raises(CorruptionError, match="another log"):
        changelog.writer(0)


def test_short_reads_change_nothing(tmp_path, monkeypatch):
    changelog, sample = made(tmp_path, 10, 700, 4, keys=400)
    pread, number = os.pread, Random(5)
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, number.randint(1, size), at))
    assert check(changelog, sample) == 3
    compact_all(changelog, sample)
    assert state_of(changelog.reader(0)) == sample.state


def test_reads_that_fail_or_lie_are_errors_with_a_place(tmp_path, monkeypatch):
    changelog, sample = made(tmp_path, 10, 40)
    pread, number, reader = os.pread, Random(6), changelog.reader(0)
    for which in range(16):
        calls = count()

        def lie(file, size, at, which=which, calls=calls):
            data = pread(file, size, at)
            if next(calls) != which:
                return data
            match number.randrange(4):
                case 0:
                    raise OSError(5, "Input/output error")
                case 1:
                    return b""
                case 2:
                    return bytes(len(data))
                case _:
                    return number.randbytes(len(data))

        monkeypatch.setattr(os, "pread", lie)
        with suppress(ChangelogError):
            assert check_reader(reader, sample) in (None, 1, 2)
        monkeypatch.undo()
    assert check(changelog, sample) == 2


def test_a_damaged_header_or_position(tmp_path):
    changelog, _ = made(tmp_path, 1)
    changelog.put_position(1, b"here")
    for name in ("header", "positions/00000000000000000001.position"):
        path = tmp_path / "log" / name
        data = path.read_bytes()
        for size in range(len(data)):
            for damaged in (data[:size], data[:size] + bytes((data[size] ^ 4,)) + data[size + 1 :]):
                path.write_bytes(damaged)
                with pytest.raises(CorruptionError, match=name.split("/")[-1]):
                    list(changelog.positions()) if "position" in name else changelog.header()
        path.write_bytes(data)
    assert list(changelog.positions()) == [(1, b"here")]
