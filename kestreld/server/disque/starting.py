"""Jobs where `listen.disque` asks for them: their store, their node, and what the server looks after for them."""

from collections.abc import Callable

from kestreld.config.config import Config, RetryFrom
from kestreld.files import must_be_the_systems
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.maintenance import Engine
from kestreld.jobs.storage import JobStorage
from kestreld.jobs.store import RandomBytes
from kestreld.journal.disque_aof import AOF_NAME
from kestreld.queues.collection import QueueCollection
from kestreld.server.disque.conf_file import DisqueConf
from kestreld.server.disque.figures import JobFigures
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.disque.node_id import NodeIdFile
from kestreld.server.disque.persistence import LoggedJobs, fsync_word
from kestreld.server.disque.protocol import Disque
from kestreld.server.disque.saved_settings import SavedSettings
from kestreld.server.service import Service

NODE_ID_RANDOM_BYTES = 20


def new_jobs(
    collection: QueueCollection, config: Config, random_bytes: RandomBytes, tidy: Callable[[], None] = lambda: None
) -> Jobs:
    """An empty store. `tidy` is called now and then while jobs fall due by the million."""
    return Jobs(
        collection.clock,
        collection.agenda,
        random_bytes,
        random_bytes(NODE_ID_RANDOM_BYTES).hex().encode(),
        retry_from_delivery=config.jobs_retry_from is RetryFrom.DELIVERY,
        queues_max=config.max_queues,
        rules=config.job_rules.rules,
        tidy=tidy,
    )


def disque_protocol(
    service: Service, jobs: Jobs, random_bytes: RandomBytes, port: int, process: ProcessFacts
) -> tuple[Disque, DisqueNode]:
    """The protocol that serves these jobs, and the node that its sessions share."""
    node = DisqueNode(service.state, jobs, random_bytes, port, process)
    service.show_jobs(JobFigures(node))
    service.once_a_second.append(node.look_after)
    service.at_stop.append(node.end)
    return Disque(node), node


def keep_id(service: Service, node: DisqueNode, report: Callable[[str], None]) -> None:
    """The node is the one that it was before, and goes on to be."""
    collection = service.collection
    file = NodeIdFile(collection.files, collection.spool, node.jobs, report)
    file.begin()
    file.look_after()
    node.change_id = file.change
    service.once_a_second.append(file.look_after)


def keep_on_disk(
    service: Service,
    node: DisqueNode,
    config: Config,
    report: Callable[[str], None],
    settle: Callable[[], None],
    conf: DisqueConf | None = None,
    fail: Callable[[str], None] = lambda problem: None,
) -> JobStorage:
    """Load the node's jobs, and log what happens to them, as the configuration and what CONFIG has saved say.

    `settle` is told now and then while much is loaded that stays, `fail` why nothing can be.
    """
    collection, settings = service.collection, node.settings
    spool = collection.spool
    engine = Engine(
        collection.files,
        collection.clock,
        collection.agenda,
        collection.commit,
        collection.open_files,
        service.slices,
        service.maintenance.sync,
        report,
        settle,
    )
    storage = JobStorage(
        engine,
        node.jobs,
        spool,
        sync_ms=config.jobs_sync_journal_ms,
        segment_bytes_max=config.defaults.max_journal_size_bytes,
    )
    log = LoggedJobs(storage, collection.clock, node.update_care)
    node.persist(log)
    settings.start_with(b"appendonly", b"yes" if config.jobs_journal else b"no")
    settings.start_with(b"appendfsync", fsync_word(config.jobs_sync_journal_ms))
    saved = SavedSettings(collection.files, spool) if conf is None else conf
    node.config_path = saved.path
    node.save_settings = lambda: saved.write(settings)
    try:
        found, problems = saved.read(settings)
    except OSError as error:
        must_be_the_systems(error)
        found, problems = [], [f"{saved.path}: cannot be read: {error.strerror}"]
    for problem in problems:
        report(problem)
    for name, value in found:
        node.set(name, value)
    was_controlled = settings[b"aof-enqueue-jobs-once"] == b"yes"

    def loaded(problem: str) -> None:
        if problem:
            fail(problem)
        elif was_controlled:  # the queues are restored once
            node.set(b"aof-enqueue-jobs-once", b"no")
            if problem := node.save_settings():
                report(f"aof-enqueue-jobs-once is no again, but not saved: {problem}")

    aof = f"{spool}/{AOF_NAME}" if conf is None else conf.aof_path
    log.begin(loaded, on=settings[b"appendonly"] == b"yes", aof=aof if collection.files.is_file(aof) else "")
    service.at_close.append(storage.close)
    return storage
