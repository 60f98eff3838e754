"""Clients that send what no client should."""

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from tests.support.queue_client import QueueClient


def garbled(rng: random.Random, commands: Sequence[bytes] = ()) -> bytes:
    """Bytes of some kind: noise, or commands, those and others, with some bytes changed, lost or said twice."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(1, 3000))
    stream = bytearray()
    for _ in range(rng.randrange(1, 12)):
        data = rng.randbytes(rng.randrange(0, 40))
        stream += rng.choice(
            [
                b"set noise 0 0 %d\r\n%b\r\n" % (len(data), data),
                b"get noise/t=5\r\n",
                b"get noise/open/close noise/peek\r\n",
                b"gets noise noise+child\r\n",
                b"add noise 0 0 %d\r\n%b\r\n" % (len(data), data),
                b"delete noise\r\n",
                b"stats\r\nversion\r\ndump_config\r\n",
                b"flush noise noreply\r\n",
                *commands,
            ]
        )
    for _ in range(rng.randrange(0, 6)):
        at = rng.randrange(len(stream))
        change = rng.random()
        if change < 0.4:
            stream[at] ^= 1 << rng.randrange(8)
        elif change < 0.7:
            del stream[at : at + rng.randrange(1, 10)]
        else:
            stream[at:at] = stream[at : at + rng.randrange(1, 10)]
        if not stream:
            return b"\n"
    return bytes(stream)


def make_noise(
    connect: Callable[[], QueueClient], other: QueueClient, seed: int, rounds: int, commands: Sequence[bytes] = ()
) -> None:
    """Garbled commands from ten clients at a time, while `other` goes about its business."""
    rng = random.Random(seed)
    for number in range(rounds):
        with ExitStack() as clients:
            noisy = [clients.enter_context(connect()) for _ in range(10)]
            for client in noisy:
                with suppress(OSError):  # it may be hung up on before it has said everything
                    client.send(garbled(rng, commands))
                    client.end_input()
            for client in noisy[: rng.randrange(11)]:
                client.read_all()  # the others hang up without a look at their answers
        other.put("undisturbed", b"%d" % number)
        assert other.get("undisturbed") == b"%d" % number
