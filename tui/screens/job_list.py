"""Screen with the jobs of a queue: their states and next requeue times."""

from collections.abc import Sequence
from typing import Final

from textual.app import ComposeResult
from textual.widgets import Static

from tui.formats import count, printable, size, span
from tui.items import ItemForm, shown_item
from tui.job_lists import JobList, JobState, ListedJob
from tui.job_rows import job_figures
from tui.keys import JOB_LIST_KEYS, bindings
from tui.screens.boxes import IN_A_REPLAY, LOADING, Box, BoxScreen, in_columns, put_lines
from tui.screens.key_bar import KeyBar
from tui.session import Session

HEADS: Final = ("state", "next requeue", "id", "age", "expires in", "retry", "nacks", "again", "bytes", "body")
BODY_LETTERS: Final = 60
RIGHT: Final = (1, 3, 4, 5, 6, 7, 8)


class JobListScreen(BoxScreen):
    BINDINGS = bindings(JOB_LIST_KEYS)
    DEFAULT_CSS = """
    JobListScreen #jobs-box { height: 1fr; }
    """

    def __init__(self, session: Session, queue: str) -> None:
        super().__init__(session)
        self.queue = queue
        self.answers: list[JobList] = []  # one for each server of the view
        self._state = JobState.QUEUED

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Box(id="jobs-box"):
            yield Static(id="jobs")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#jobs-box").focus()
        self.action_ask()
        self.show()

    # Drawing

    def show(self) -> None:
        """Show the queue's current figures, and the jobs as of the last request."""
        rows = [row for row in self.session.board.job_rows() if row.queue == self.queue]
        figures = [words for row in rows for words in job_figures(row)] or ["no such queue"]
        put_lines(self.query_one("#title", Static), ["  ".join([printable(self.queue), *figures])])
        jobs = sum(len(answer.jobs) for answer in self.answers)
        more = " and more" if any(answer.has_more for answer in self.answers) else ""
        title = f"{self._state.words}, {count(jobs)}{more}" if self.answers else "jobs"
        self.query_one("#jobs-box").border_title = title
        put_lines(self.query_one("#jobs", Static), self._lines())

    def _lines(self) -> list[str]:
        if self.session.player is not None:
            return [IN_A_REPLAY]
        lines = [] if self.answers else [LOADING]
        for answer in self.answers:
            if answer.failure:
                lines.append(f"▲ {answer.server} cannot show its jobs: {answer.failure}")
                continue
            if len(self.answers) > 1:
                lines.append(answer.server)
            jobs = [_cells(job, answer.now_ms) for job in answer.jobs]
            lines += in_columns([HEADS, *jobs], right=RIGHT) if jobs else [f"no {self._state.words}"]
        return lines

    def show_answers(self, answers: list[JobList]) -> None:
        self.answers = answers
        self.show()

    # Keys

    def action_ask(self) -> None:
        self.ask("jobs", self.session.requests.jobs_of(self.queue, self._state), self.show_answers)

    def action_next_state(self) -> None:
        states = list(JobState)
        self._state = states[(states.index(self._state) + 1) % len(states)]
        self.action_ask()


def _cells(job: ListedJob, now_ms: int) -> Sequence[str]:
    requeue_at_ms = job.next_requeue_at_ms
    letters = shown_item(job.body, ItemForm.TEXT).replace("\n", "·")
    return (
        job.state,
        "never" if requeue_at_ms is None else f"in {span(max(requeue_at_ms - now_ms, 0))}",
        job.job_id,
        span(max(now_ms - job.created_at_ms, 0)),
        span(max(job.expires_at_ms - now_ms, 0)),
        span(job.retry_ms) if job.retry_ms else "never",
        str(job.nacks),
        str(job.deliveries),
        size(job.body_bytes),
        (f"({job.origin}) " if job.origin else "")
        + (letters if len(letters) <= BODY_LETTERS else letters[: BODY_LETTERS - 1] + "…"),
    )
