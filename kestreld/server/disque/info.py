"""The sections of INFO."""

from collections.abc import Callable, Iterator

from kestreld import __version__
from kestreld.server.disque import cluster_figures
from kestreld.server.disque.node import DisqueNode
from kestreld.stats import Figures

DISQUE_VERSION = "1.0-rc1"  # version whose commands these are, since clients check it


def sections(node: DisqueNode) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Yield each section's name, and a function that makes its lines."""
    yield "Server", lambda: _server(node)
    yield "Clients", lambda: _clients(node)
    yield "Memory", lambda: _memory(node)
    yield "Jobs", lambda: [("registered_jobs", node.jobs.table.count), *cluster_figures.of_jobs(node)]
    yield "Queues", lambda: [("registered_queues", node.jobs.listed)]
    yield "Persistence", lambda: _persistence(node)
    yield "Stats", lambda: _stats(node)
    yield "CPU", lambda: _cpu(node)
    yield "Cluster", lambda: cluster_figures.section(node)
    yield "Commandstats", lambda: _command_stats(node)


def _server(node: DisqueNode) -> Figures:
    uptime_s = (node.clock.monotonic_ms - node.started_at_ms) // 1000
    return [
        ("disque_version", DISQUE_VERSION),
        ("kestreld_version", __version__),
        ("disque_git_sha1", "00000000"),
        ("disque_git_dirty", 0),
        ("disque_build_id", 0),
        ("os", node.process.system),
        ("arch_bits", 64),
        ("multiplexing_api", "epoll"),
        ("gcc_version", "0.0.0"),
        ("process_id", node.process.process_id),
        ("run_id", node.run_id.decode()),
        ("tcp_port", node.port),
        ("uptime_in_seconds", uptime_s),
        ("uptime_in_days", uptime_s // 86_400),
        ("hz", node.settings[b"hz"].decode()),
        ("executable", node.process.executable),
        ("config_file", node.config_path),
    ]


def _clients(node: DisqueNode) -> Figures:
    blocked = sum([client.waiter is not None for client in node.clients.values()])
    return [
        ("connected_clients", len(node.clients)),
        ("client_longest_output_list", 0),
        ("client_biggest_input_buf", 0),
        ("blocked_clients", blocked),
    ]


def human(size_bytes: int) -> str:
    """Format a size as Redis does for people."""
    size, units = float(size_bytes), "BKMGT"
    place = 0
    while size >= 1024 and place < len(units) - 1:
        size, place = size / 1024, place + 1
    return f"{size_bytes}B" if not place else f"{size:.2f}{units[place]}"


def _memory(node: DisqueNode) -> Figures:
    memory, resident_bytes = node.jobs.memory, node.process.resident_bytes()
    peak_bytes = max(memory.peak_bytes, memory.used_bytes)
    return [
        ("used_memory", memory.used_bytes),
        ("used_memory_human", human(memory.used_bytes)),
        ("used_memory_rss", resident_bytes),
        ("used_memory_peak", peak_bytes),
        ("used_memory_peak_human", human(peak_bytes)),
        ("mem_fragmentation_ratio", f"{resident_bytes / memory.used_bytes:.2f}"),
        ("mem_allocator", "libc"),
        ("maxmemory", memory.max_bytes),
        ("maxmemory_level", memory.level),
        ("maxmemory_level_percent", memory.level_percent),
    ]


def _persistence(node: DisqueNode) -> Figures:
    return node.persistence.figures()


def _stats(node: DisqueNode) -> Figures:
    stats = node.state.stats
    read_before, written_before, rejected_before = node.counted_before
    return [
        ("total_connections_received", node.connections),
        ("total_commands_processed", sum([command.calls for command in node.commands.values()])),
        ("instantaneous_ops_per_sec", node.rates.per_s(0)),
        ("total_net_input_bytes", stats.bytes_read - read_before),
        ("total_net_output_bytes", stats.bytes_written - written_before),
        ("instantaneous_input_kbps", f"{node.rates.per_s(1) / 1024:.2f}"),
        ("instantaneous_output_kbps", f"{node.rates.per_s(2) / 1024:.2f}"),
        ("rejected_connections", stats.rejected_connections - rejected_before),
        ("latest_fork_usec", 0),
    ]


def _cpu(node: DisqueNode) -> Figures:
    user_s, system_s = node.process.cpu_s()
    return [
        ("used_cpu_sys", f"{system_s:.2f}"),
        ("used_cpu_user", f"{user_s:.2f}"),
        ("used_cpu_sys_children", "0.00"),
        ("used_cpu_user_children", "0.00"),
    ]


def _command_stats(node: DisqueNode) -> Figures:
    return [
        (
            f"cmdstat_{command.name.decode()}",
            f"calls={command.calls},usec={command.spent_us},usec_per_call={command.spent_us / command.calls:.2f}",
        )
        for command in node.commands.values()
        if command.calls
    ]
