"""Recordings: what was seen comes back as it was."""

from pathlib import Path

import pytest

from kestrelctl.shell.exit_codes import ExitCode, Failure
from tests.tui.sights import figures, snapshot
from tui.board import ALL_SERVERS, Board
from tui.recording import Recorder, load
from tui.snapshots import Outage, Snapshot

LOOKS: list[Snapshot | Outage] = [
    snapshot(0, work=figures(items=1, total_items=1), mail=figures(items=5)),
    snapshot(1000, work=figures(items=3, total_items=3), mail=figures(items=5)),
    Outage("a:1", 1_700_000_002_000, "gone", 2000),
    snapshot(4000, mail=figures(items=5), **{"b\udcff": figures(items=2)}),
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "seen.jsonl"
    recorder = Recorder(str(path), 500)
    for look in LOOKS:
        recorder.write(look)
    recorder.close()
    return path


def test_a_recording_gives_back_every_look(recording: Path) -> None:
    player = load(str(recording))
    assert list(player.samples) == LOOKS
    assert (player.servers, player.interval_ms) == (["a:1"], 500)


def test_only_what_changed_is_written(recording: Path) -> None:
    assert recording.read_text().count('"mail"') == 1


def test_the_last_line_of_a_recording_may_be_torn(recording: Path) -> None:
    recording.write_bytes(recording.read_bytes()[:-7])
    assert list(load(str(recording)).samples) == LOOKS[:-1]


def test_going_back_shows_what_was_seen_then(recording: Path) -> None:
    player, board = load(str(recording)), Board(["a:1"])
    player.seek(99, board)
    assert player.is_at_end
    assert {each.queue for each in board.rows(ALL_SERVERS)} == {"mail", "b\udcff"}
    player.seek(1, board)
    work = next(each for each in board.rows(ALL_SERVERS) if each.queue == "work")
    assert (work.items, work.in_per_s, board.outages()) == (3, 2.0, [])
    assert board.histories[ALL_SERVERS].series("work", "items", 9) == [1, 3]
    assert "2/4" in player.scrubber(20)
    player.seek(-5, board)
    assert player.position == 0


def test_an_existing_file_is_not_overwritten(recording: Path) -> None:
    with pytest.raises(FileExistsError):
        Recorder(str(recording), 1000)


@pytest.mark.parametrize("text", ["", "hello\n", "[1]\n", '{"kestrel_top":1,"keys":[],"interval_ms":1}\n{}\n'])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(Failure) as refused:
        load(str(path))
    assert refused.value.code == ExitCode.CORRUPT
    assert str(path) in refused.value.words
