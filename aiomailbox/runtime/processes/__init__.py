"""A job in several processes of one machine: workers, and their parent as a peer."""

from aiomailbox.runtime.processes.starter import Processes

__all__ = ["Processes"]
