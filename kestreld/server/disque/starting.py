"""Jobs where `listen.disque` asks for them: their store, their node, and what the server looks after for them."""

from kestreld.config.config import Config, RetryFrom
from kestreld.jobs.dead_letters import DeadLetterRules
from kestreld.jobs.jobs import Jobs, RandomBytes
from kestreld.queues.collection import QueueCollection
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.disque.protocol import Disque
from kestreld.server.service import Service

NODE_ID_RANDOM_BYTES = 20


def new_jobs(collection: QueueCollection, config: Config, random_bytes: RandomBytes) -> Jobs:
    """An empty store."""
    jobs = Jobs(
        collection.clock,
        collection.agenda,
        random_bytes,
        random_bytes(NODE_ID_RANDOM_BYTES).hex().encode(),
        retry_from_delivery=config.jobs_retry_from is RetryFrom.DELIVERY,
    )
    jobs.queues_max = config.max_queues
    jobs.rules = DeadLetterRules(config.job_rules.rules)
    return jobs


def disque_protocol(
    service: Service, jobs: Jobs, random_bytes: RandomBytes, port: int, process: ProcessFacts
) -> tuple[Disque, DisqueNode]:
    """The protocol that serves these jobs, and the node that its sessions share."""
    node = DisqueNode(service.state, jobs, random_bytes, port, process)
    service.once_a_second.append(node.look_after)
    service.at_stop.append(node.end)
    return Disque(node), node
