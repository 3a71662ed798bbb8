"""What JSON holds: statistics of manifests, configurations, scores.

Read here by name into typed forms; nothing beyond `gather` sees it.
"""

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]
