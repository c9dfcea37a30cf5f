"""What users write: environments, streams, jobs."""

from aiomailbox.api.connected import ConnectedStreams
from aiomailbox.api.environment import StreamExecutionEnvironment
from aiomailbox.api.job import JobClient, JobMetrics
from aiomailbox.api.pipeline import Pipeline, pipeline
from aiomailbox.api.run import run
from aiomailbox.api.stream import DataStream, KeyedStream
from aiomailbox.api.windowed import WindowedStream

__all__ = [
    "ConnectedStreams",
    "DataStream",
    "JobClient",
    "JobMetrics",
    "KeyedStream",
    "Pipeline",
    "StreamExecutionEnvironment",
    "WindowedStream",
    "pipeline",
    "run",
]
