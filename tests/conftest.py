"""Property tests try the same examples at each run, so that a change is what makes one fail; `make prove` looks for
others (`--hypothesis-profile search`).
"""

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile(
    "search",
    max_examples=5000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
