"""The version of dnc, where every layer may read it."""

VERSION = "0.1.0"
