"""What users write: environments, streams, jobs."""

from aiomailbox.api.connected import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.api.job import (
    JobClient,
    LatestSnapshot,
    OperatorWatermark,
    held_jobs,
    latest_job,
)
from aiomailbox.api.job_progress import (
    JobProgress,
    operator_rows,
    progress,
    progress_of,
)
from aiomailbox.api.joined import (
    CoGroupedWindows,
    IntervalJoin,
    IntervalJoined,
    JoinedStreams,
    JoinedWindows,
)
from aiomailbox.api.pipeline import Pipeline, pipeline
from aiomailbox.api.run import run
from aiomailbox.api.sessions import Session
from aiomailbox.api.stream import DataStream, KeyedStream
from aiomailbox.api.windowed import WindowedStream

__all__ = [
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CoGroupedWindows",
    "ConnectedStreams",
    "DataStream",
    "IntervalJoin",
    "IntervalJoined",
    "JobClient",
    "JobProgress",
    "JoinedStreams",
    "JoinedWindows",
    "KeyedStream",
    "LatestSnapshot",
    "OperatorWatermark",
    "Pipeline",
    "Session",
    "StreamExecutionEnvironment",
    "WindowedStream",
    "held_jobs",
    "latest_job",
    "operator_rows",
    "pipeline",
    "progress",
    "progress_of",
    "run",
]
