"""Discovery of journal files in spools, archives and folders of them, and of the bytes of each that count."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.beginnings import Beginning, Gap, counted_bytes, is_empty, read_beginning, take_unfinished
from kestreld.journal.job_segments import parse_job_segment_name
from kestreld.journal.kestrel.format import queue_of, replayed_files
from kestreld.journal.kestrel.ops import Unreadable, op_end
from kestreld.journal.marker import SUFFIX as MARKER_SUFFIX
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.records import ID_MAX, Checkpoint, Kind
from kestreld.journal.segment import FOLDER_SUFFIX, MAGIC, Header, parse_segment_name
from kestreld.journal.verify import missing_at_a_start

SLACK_MS: Final = 3_600_000  # clocks are set back now and then
LOOKS: Final = 5  # reads of folders between which a running server moves segments
_SERVER: Final = re.compile(r"server=([^/]+)")


@dataclass(slots=True, frozen=True)
class Original:
    """A segment as it was written, whose items have ids from `first_id` to before `until_id`."""

    path: str
    first_id: int
    until_id: int


@dataclass(slots=True, frozen=True)
class JournalFile:
    """A file to read.

    Of a segment `end` is how many of its bytes count, None = all. `is_newest`: no later one was found; `is_live`: its
    server writes to it, or did when it died, so that its tail may be torn. `end_id` follows its last item's id, None =
    not known. `originals` are segments that may hold some of a compacted one's items already. What an earlier run has
    read does not count: the bytes before `start`, and of a compacted one the items before `from_id`.

    `gap` follows the file. `missing` is an error message for files missing from the folder `path`: then there is
    nothing to read. `roots` are the paths that were searched, under which an archived file may be found again.
    """

    path: str
    server: str
    queue: str  # the family
    reader: str  # a Kestrel file's child, "" otherwise
    size_bytes: int
    is_kestrel: bool = False
    journal_id: int | None = None
    number: int = 0
    end: int | None = None
    is_newest: bool = True
    is_live: bool = True
    originals: tuple[Original, ...] = ()
    is_compacted: bool = False
    start: int = 0
    from_id: int = 0
    end_id: int | None = None
    gap: Gap | None = None
    missing: str = ""
    roots: tuple[str, ...] = ()


@dataclass(slots=True)
class _Segment:
    path: str
    server: str
    number: int
    first_id: int
    size_bytes: int
    beginning: Beginning
    is_named: bool = False  # the path was named, so that nothing is known of its neighbours

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_in_spool(self) -> bool:
        return self.folder.endswith(FOLDER_SUFFIX)

    @property
    def header(self) -> Header | None:
        return self.beginning.header

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.beginning.checkpoint


@dataclass(slots=True, frozen=True)
class KnownReader:
    """A reader that a journal's CHECKPOINTs name. Its items have ids from `from_id` to before `until_id`.

    `backlog_items` were not done when the first segment there is began; `until_id` None = the reader still exists.
    Earlier or later readers may have the same name: `number` tells them apart, 0 = not known.
    """

    server: str
    queue: str
    journal_id: int
    reader: str
    from_id: int
    until_id: int | None
    backlog_items: int
    backlog_bytes: int
    number: int = 0
    ended_at_ms: int | None = None


@dataclass(slots=True)
class Discovery:
    """Files and readers that were found. `missing` is what spools lack by their markers, besides gaps of files."""

    files: list[JournalFile] = field(default_factory=list)
    readers: list[KnownReader] = field(default_factory=list)
    missing: list[JournalFile] = field(default_factory=list)


def discover(
    paths: Sequence[str], queues: Sequence[str] = (), since_ms: int | None = None, files: FileLayer | None = None
) -> Discovery:
    """Find the journal files under paths, which may be globs: spools, archives, folders of them, or single files.

    `queues` are names or patterns of queues as text, none = all. Segments that ended before `since_ms` are left out.
    `files` are those of this machine by default. Raises FileNotFoundError for a path where there is nothing, OSError.
    """
    files = files or FileLayer()
    roots = tuple(paths)
    segments: dict[str, list[_Segment]] = {}
    seen, is_settled = _look_at_all(files, roots)
    kestrel_files: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    markers: dict[str, Marker] = {}
    for path, named in seen.others:
        folder, _, name = path.rpartition("/")
        if name.endswith(MARKER_SUFFIX) and folder.endswith(FOLDER_SUFFIX):
            if (marker := find_marker([name, *([markers[folder].name] if folder in markers else [])])) is not None:
                markers[folder] = marker
        elif (queue := queue_of(name)) is not None and _is_wanted(*_family(queue), queues):
            kestrel_files.setdefault((folder, queue), []).append((name, named))
    for segment in seen.segments:
        if _is_wanted(text_of(_queue_of(segment)), "", queues):
            segments.setdefault(_journal_of(files, segment), []).append(segment)
    found = Discovery()
    for journal in sorted(segments):
        _FoundJournal(files, segments[journal], markers, roots, is_settled=is_settled).add_to(found, since_ms)
    for folder in sorted(markers.keys() - {segment.folder for segment in seen.segments}):
        queue = _queue_of_folder(folder)
        if _is_wanted(text_of(queue), "", queues) and is_settled:
            words = missing_at_a_start(files, folder, [], markers[folder])
            found.missing += _missing(words, folder, server_of(folder), queue, None)
    for (folder, queue), names in sorted(kestrel_files.items()):
        found.files += _kestrel_files(files, folder, queue, names)
    return found


def find_moved(files: FileLayer, file: JournalFile) -> str | None:
    """Path of a segment that was archived since it was found; None = it was deleted. Raises OSError."""
    name = file.path.rpartition("/")[2]
    with suppress(FileNotFoundError):  # of the searched places
        for path, _ in _walk(files, file.roots):
            if path.endswith(f"/{name}") and path != file.path and server_of(path) == file.server:
                segment = _look_at(files, path)
                if segment is not None and (_queue_of(segment), _journal_id(segment)) == (file.queue, file.journal_id):
                    return path
    return None


# Walking


def _walk(files: FileLayer, paths: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Every file under the paths once, and True if it was named itself. Hidden files are skipped."""
    seen: set[str] = set()
    for pattern in paths:
        matches = files.matching(pattern.removeprefix("file:"))
        if not matches:
            raise FileNotFoundError(f"{pattern}: no such file or folder")
        for match in matches:
            for path in [match] if files.is_file(match) else files.files_below(match):
                if path not in seen:
                    seen.add(path)
                    yield path, path == match


def _is_wanted(family: str, reader: str, queues: Sequence[str]) -> bool:
    """True if the queue matches; a child's name also matches its family, which has its items."""
    name = f"{family}+{reader}" if reader else family
    return not queues or any(
        fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(family, pattern.partition("+")[0])
        for pattern in queues
    )


def _family(queue: str) -> tuple[str, str]:
    family, _, child = queue.partition("+")
    return family, child


def text_of(name: str) -> str:
    """Decode a queue's or reader's name: on disk each byte is a character."""
    return name.encode("latin-1", "replace").decode("utf-8", "replace")


def server_of(path: str) -> str:
    """Value of the last server=NAME folder in a path; "" = there is none."""
    named = _SERVER.findall(path)
    return unquote(named[-1]) if named else ""


# Segments


@dataclass(slots=True)
class _Seen:
    segments: list[_Segment] = field(default_factory=list)
    others: list[tuple[str, bool]] = field(default_factory=list)


def _look_at_all(files: FileLayer, paths: Sequence[str]) -> tuple[_Seen, bool]:
    """Segments and other files under the paths, and True if nothing had moved at the last look.

    A running server archives segments meanwhile: one that left a folder may be in another that was listed before. So
    spools are read again until there is nothing new.
    """
    looked: dict[str, _Segment | None] = {}
    for _ in range(LOOKS):
        names: list[str] = []
        seen = _Seen()
        is_named: dict[str, bool] = {}
        for path, named in _walk(files, paths):
            name = path.rpartition("/")[2]
            if path in looked or parse_segment_name(name) is not None:
                names.append(path)
                is_named[path] = named
            elif parse_job_segment_name(name) is None:  # of no queue
                seen.others.append((path, named))
        new = [path for path in names if path not in looked]
        looked.update(zip(new, files.at_once(partial(_look_at, files), new), strict=True))
        for path in names:
            if (segment := looked[path]) is not None:
                segment.is_named = is_named[path]
                seen.segments.append(segment)
        if not new or not any(segment.is_in_spool for segment in seen.segments):
            return seen, True
    return seen, False


def _look_at(files: FileLayer, path: str) -> _Segment | None:
    """Beginning of the segment at `path`; None if it was removed meanwhile."""
    try:
        size_bytes = files.size_bytes(path)
        beginning = read_beginning(path, size_bytes, lambda most: files.read_start(path, most))
    except FileNotFoundError:
        return None
    segment = beginning.segment
    return _Segment(path, server_of(path), segment.number, segment.first_id, size_bytes, beginning)


def _queue_of(segment: _Segment) -> str:
    """The queue in the header, or else in the folder's name."""
    return segment.header.queue if segment.header is not None else _queue_of_folder(segment.folder)


def _journal_id(segment: _Segment) -> int | None:
    """The journal id in the header, or else in the name of an archive's folder."""
    if segment.header is not None:
        return segment.header.journal_id
    name = segment.folder.rpartition("/")[2]
    return int(name) if name.isdecimal() else None


def _queue_of_folder(path: str) -> str:
    """Queue by the folder's name: <queue>.journal in a spool, <queue>/<journal_id> in an archive."""
    *_, folder, name = ("", *path.split("/"))
    if name.isdecimal():
        name = folder
    return unquote(name.removesuffix(FOLDER_SUFFIX), "latin-1")


def _journal_of(files: FileLayer, segment: _Segment) -> str:
    """Key of a segment's journal, live or archived. For a segment without a header its folder decides."""
    if segment.header is None:
        journal_id = segment.path.split("/")[-2]
        if not journal_id.isdecimal():
            journal_id = _sibling_journal_id(files, segment.path)
    else:
        journal_id = str(segment.header.journal_id)
    return f"{segment.server}\0{_queue_of(segment)}\0{journal_id.zfill(20)}"


def _sibling_journal_id(files: FileLayer, path: str) -> str:
    """Journal id in the headers of other segments in the folder."""
    folder = path.rpartition("/")[0]
    for name in files.list_dir(folder):
        if parse_segment_name(name) is not None:
            segment = _look_at(files, f"{folder}/{name}")
            if segment is not None and segment.header is not None:
                return str(segment.header.journal_id)
    return folder


class _FoundJournal:
    """Segments of a journal in order, from any folder, each number once."""

    def __init__(
        self,
        files: FileLayer,
        segments: list[_Segment],
        markers: Mapping[str, Marker],
        roots: tuple[str, ...],
        *,
        is_settled: bool,
    ) -> None:
        by_number: dict[int, _Segment] = {}
        for segment in segments:  # a segment that is being archived may be in both places
            other = by_number.get(segment.number)
            if other is None or segment.size_bytes > other.size_bytes:
                by_number[segment.number] = segment
        self._files = files
        self._by_number = dict(sorted(by_number.items()))
        self._plain = {number: one for number, one in self._by_number.items() if not _is_compacted(one)}
        self._newest = by_number[max(by_number)]
        self._replaced: set[int] = set()
        for segment in by_number.values():
            self._replaced.update(segment.header.replaced if segment.header is not None else ())
        self._journal_id = next((one.header.journal_id for one in by_number.values() if one.header is not None), None)
        self._markers = markers
        self._roots = roots
        self._is_settled = is_settled

    def add_to(self, found: Discovery, since_ms: int | None) -> None:
        in_folder = self._names_in_spool()
        live = _live_numbers(self._files, self._newest, in_folder)
        gaps = self._gaps() if self._is_settled else {}
        end_ids = self._end_ids()
        for number, segment in self._by_number.items():
            originals: tuple[Original, ...] = ()
            is_compacted = number not in self._plain
            if is_compacted:
                assert segment.header is not None
                if number in self._replaced or all(one in self._plain for one in segment.header.replaced):
                    continue  # all its items are elsewhere
                originals = _originals(self._plain, segment)
            # One number may be left free for a compacted segment.
            follower = self._plain.get(number + 1) or self._plain.get(number + 2)
            if since_ms is not None and _ended_before(follower, since_ms - SLACK_MS):
                continue
            end = None
            if follower is not None and number not in live and not is_compacted:
                if is_empty(segment.beginning, follower.beginning):
                    continue
                end = _counted_bytes(self._files, segment, follower)
            found.files.append(
                JournalFile(
                    segment.path,
                    segment.server,
                    _queue_of(segment),
                    "",
                    segment.size_bytes,
                    False,
                    self._journal_id,
                    number,
                    end,
                    segment is self._newest,
                    number in live,
                    originals,
                    is_compacted,
                    end_id=end_ids[number],
                    gap=gaps.get(number),
                    roots=self._roots,
                )
            )
        if self._is_settled and in_folder:
            words, folder = self._missing(in_folder, gaps.values()), self._newest.folder
            found.missing += _missing(words, folder, self._newest.server, _queue_of(self._newest), self._journal_id)
        if self._journal_id is not None:
            found.readers += _readers(self._by_number, self._journal_id)

    def _names_in_spool(self) -> list[str]:
        """All names in the newest segment's folder, if that is in a spool."""
        if self._newest.is_in_spool:
            with suppress(FileNotFoundError):  # the queue was deleted meanwhile
                return self._files.list_dir(self._newest.folder)
        return []

    def _end_ids(self) -> dict[int, int | None]:
        """By number, an id above all of a segment's items: the first one of the segments behind it."""
        end_ids: dict[int, int | None] = {}
        end_id: int | None = None
        for number in sorted(self._by_number, reverse=True):
            end_ids[number] = end_id
            if number in self._plain:
                first_id = self._plain[number].first_id
                end_id = first_id if end_id is None else min(end_id, first_id)
        return end_ids

    def _gaps(self) -> dict[int, Gap]:
        """Gaps by the number of the segment before each."""
        gaps = {}
        for (number, earlier), (following, later) in pairwise(self._plain.items()):
            if following == number + 1 or later.checkpoint is None or earlier.is_named or later.is_named:
                continue
            marker = self._markers.get(later.folder)
            if earlier.folder == later.folder and marker is not None and later.first_id <= marker.floor:
                continue  # a power cut may bring back some of the segments that nobody needs
            # Compacted segments have all live items; replaced ones are in the archive, if there is one.
            known = self._replaced | self._by_number.keys() if earlier.is_in_spool else self._by_number.keys()
            free = [one for one in range(number + 1, following) if one not in known]
            if free:
                gaps[number] = Gap(free[0], free[-1], later.checkpoint.put_items)
        return gaps

    def _missing(self, in_folder: list[str], gaps: Iterable[Gap]) -> str:
        """Error message for segments missing by the newest segment and its folder's marker, without gaps; "" = nothing.

        It is that of `journal-verify`. Only reading as startup does can tell, so that is done only if something looks
        odd.
        """
        marker = self._markers.get(self._newest.folder)
        if marker is None or self._newest.is_named:
            return ""
        first = next(one for one in self._by_number.values() if one.folder == self._newest.folder)
        if (
            first.first_id <= marker.floor
            and self._newest.number >= marker.number
            and not self._may_miss_what_is_held_back()
        ):
            return ""
        names = [name for name in in_folder if parse_segment_name(name) is not None]
        words = missing_at_a_start(self._files, self._newest.folder, names, marker)
        return "" if words in [gap.problem(-1) for gap in gaps] else words

    def _may_miss_what_is_held_back(self) -> bool:
        """True if items are held and there is a gap between segments that is not merely a free number."""
        if self._newest.checkpoint is None or not self._newest.checkpoint.held_from:
            return False
        return any(
            following > number + 1
            and later.checkpoint is not None
            and later.checkpoint.previous_bytes != earlier.size_bytes
            for (number, earlier), (following, later) in pairwise(self._plain.items())
            if earlier.folder == self._newest.folder
        )


def _missing(words: str, folder: str, server: str, queue: str, journal_id: int | None) -> list[JournalFile]:
    return [JournalFile(folder, server, queue, "", 0, False, journal_id, missing=words)] if words else []


def _live_numbers(files: FileLayer, newest: _Segment, in_folder: list[str]) -> set[int]:
    """Numbers of the segment that its server goes on in, and of newer unfinished ones, which startup sets aside.

    Only these may end in a torn tail: a closed one was whole when the next was begun. In an archive none are live.
    """
    folder, _, name = newest.path.rpartition("/")
    names = list(filter(parse_segment_name, in_folder))
    if not names or name != names[-1]:
        return set()
    if newest.beginning.problem is None:
        return {newest.number}
    live: set[int] = set()
    segments = [segment for name in names if (segment := _look_at(files, f"{folder}/{name}")) is not None]
    found = [segment.beginning for segment in segments]
    with suppress(JournalCorrupt):  # then the last one is damaged
        live.update(
            one.segment.number for one in take_unfinished(found, find_marker(in_folder), files.read_operators_file)
        )
        live.update(one.segment.number for one in found[-1:])
    return live


def _counted_bytes(files: FileLayer, segment: _Segment, follower: _Segment) -> int | None:
    """Bytes of a segment that count, None = all."""
    try:
        return counted_bytes(segment.beginning, follower.beginning, files.read_operators_file)
    except FileNotFoundError:
        return None  # it was archived meanwhile


def _originals(plain: Mapping[int, _Segment], compacted: _Segment) -> tuple[Original, ...]:
    """Originals by ids: it may replace another compacted segment, which is gone and no longer says what it replaced."""
    before = [segment for number, segment in plain.items() if number < compacted.number]
    first_ids = [*(segment.first_id for segment in before), ID_MAX]
    return tuple(
        Original(segment.path, first_id, until_id)
        for segment, (first_id, until_id) in zip(before, pairwise(first_ids), strict=True)
        if until_id > compacted.first_id
    )


def _is_compacted(segment: _Segment) -> bool:
    return segment.header is not None and bool(segment.header.replaced)


def _ended_before(follower: _Segment | None, at_ms: int) -> bool:
    return follower is not None and follower.header is not None and follower.header.created_at_ms < at_ms


def _readers(by_number: Mapping[int, _Segment], journal_id: int) -> Iterator[KnownReader]:
    """Readers that come and go, according to the CHECKPOINTs in order."""
    known: dict[int, KnownReader] = {}
    gone: list[KnownReader] = []
    is_first = True
    for number in sorted(by_number):
        segment, checkpoint = by_number[number], by_number[number].checkpoint
        if checkpoint is None or _is_compacted(segment):
            continue
        states = {state.number: state for state in checkpoint.readers}
        for dropped in known.keys() - states.keys():
            reader = known.pop(dropped)
            namesakes = [state.at_id for state in states.values() if state.name == reader.reader]
            until_id = max(min([checkpoint.next_id, *namesakes]), reader.from_id)
            ended_at_ms = None if segment.header is None else segment.header.created_at_ms
            gone.append(replace(reader, until_id=until_id, ended_at_ms=ended_at_ms))
        for state in states.values():
            if state.number not in known:
                backlog_items = state.items + state.held_items
                if state.kind == Kind.STREAM:  # a position only
                    backlog_items = max(checkpoint.next_id - state.head, 0)
                known[state.number] = KnownReader(
                    segment.server,
                    _queue_of(segment),
                    journal_id,
                    state.name,
                    max(state.at_id, checkpoint.next_id) if is_first else state.at_id,
                    None,
                    backlog_items if is_first else 0,
                    state.data_bytes + state.held_bytes if is_first else 0,
                    state.number,
                )
        is_first = False
    yield from gone
    yield from known.values()


# Kestrel's own


def _kestrel_files(files: FileLayer, folder: str, queue: str, names: list[tuple[str, bool]]) -> Iterator[JournalFile]:
    """A Kestrel queue's files in order; none if they were not named and do not read as Kestrel's."""
    here = {name for name, _ in names}
    family, child = _family(queue)
    found = []
    for name in replayed_files(files, folder, queue):
        if name in here:
            path = f"{folder}/{name}"
            size_bytes, is_live = files.size_bytes(path), name == queue
            found.append(
                JournalFile(path, server_of(path), family, child, size_bytes, is_kestrel=True, is_live=is_live)
            )
    if any(named for _, named in names) or any(_begins_with_op(files, file.path) for file in found):
        yield from found


def _begins_with_op(files: FileLayer, path: str) -> bool:
    """True if a file's first bytes may be Kestrel's, as far as one can tell."""
    start = files.read_start(path, 1 << 20)
    if not start or start.startswith(MAGIC):
        return False
    try:
        op_end(start, 0)
    except Unreadable as problem:
        return len(start) == 1 << 20 and "the file" in problem.reason
    return True
