"""The cluster bus under bytes of any kind: raw ones, and messages of a stranger or of a member."""

from typing import Final

from kestreld.cluster.joining import NODES_MAX
from kestreld.server.disque.nodes_file import parsed, written
from tests.simulation.machines import Machines
from tests.support.raw_peer import RawPeer

RAW, STRANGER, MEMBER = range(3)
MESSAGES_MAX: Final = 50
TYPES: Final = 40  # some of them unknown


def cluster_bus(data: bytes) -> None:
    """Whatever a peer sends, the server goes on, knows no more nodes than it may, and has a table that can be saved.

    The first byte says whether the rest are raw bytes, or messages of a stranger or a member: type, length, body. The
    greatest length stands for all that is left.
    """
    if len(data) < 2:
        return
    machines = Machines(1, 1)
    server = machines.servers[machines.hosts[0]]
    peer = RawPeer(machines)
    kind, stream = data[0] % 3, data[1:]
    if kind == RAW:
        peer.send(stream)
    else:
        if kind == STRANGER:
            peer.shake_hands()
        else:
            peer.become_a_member()
            assert peer.hello.node_id in {node.id for node in server.node.cluster.table.members()}
        for _ in range(MESSAGES_MAX):
            if len(stream) < 2:
                break
            message_type, size_bytes = stream[0] % TYPES, stream[1] if stream[1] < 255 else len(stream)
            peer.say(message_type, stream[2 : 2 + size_bytes])
            stream = stream[2 + size_bytes :]
        peer.answer()
    machines.run(2500)
    table = server.node.cluster.table
    assert server.loop.alive
    assert len(table) <= NODES_MAX
    content = written(table)
    nodes, is_sound = parsed(content)
    assert is_sound
    assert [node.id for node in nodes] == [node.id for node in table]
    again = RawPeer(machines)
    again.shake_hands()
    assert again.link.is_ready, "the server takes links"
