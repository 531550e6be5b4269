"""Fixtures for all tests."""

import os

from tests.support.command_line import command, finished_build, workplace

__all__ = ["command", "finished_build", "workplace"]

os.environ.setdefault("DNC_VERIFY", "1")
