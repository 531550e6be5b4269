"""The bodies of the instructions, emitted as TIRx."""
