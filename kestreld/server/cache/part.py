"""The cache as a part of the server: its figures, and its limits after a reload."""

from collections.abc import Callable

from kestreld.cache.dictionary import Dictionary
from kestreld.config.config import Config
from kestreld.server.cache.protocol import Cache
from kestreld.server.parts import Part
from kestreld.server.service import Service


class CachePart(Part):
    """An empty cache, and the protocol that serves it."""

    def __init__(self, service: Service, config: Config) -> None:
        self._dictionary = Dictionary(service.clock, config.cache_memory_bytes, config.cache_item_size_max_bytes)
        self.protocol = Cache(service.state, self._dictionary)
        service.stats.show_cache(self._dictionary.figures)

    def check(self, config: Config) -> Callable[[], None]:
        return lambda: self._dictionary.configure(config.cache_memory_bytes, config.cache_item_size_max_bytes)
